#include "emulated.h"
#include "unet_levels.cu"

extern "C" int run_levels(int programs, u16* x, const char* weights, const float* params, const float* level_params,
                          const float* entry, u16* keys, const u16* before, u16* after, const u16* times, const int* tiles,
                          const int* ends, const int* position, const int* pages, const int* step, int site, int sites,
                          int levels, int blocks, int with_resnets, int first_tail, int tail_width, int first_level,
                          int all_levels, int frames, int rows, int pages_width, u64 page_size, float scale) {
    return run(programs / PROGRAMS, PROGRAMS, THREADS, [=] {
        unet_levels(x, weights, params, level_params, entry, keys, before, after, times, tiles, ends, position, pages, step,
                    site, sites, levels, blocks, with_resnets, first_tail, tail_width, first_level, all_levels, frames, rows,
                    pages_width, page_size, scale);
    });
}
