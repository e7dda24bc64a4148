#include "emulated.h"
#include "row_attention.cu"

extern "C" int threads() { return THREADS; }
extern "C" int shared() { return SHARED; }

extern "C" int run_attention(int programs, TensorMap products, TensorMap matrix, u16* out, const int* tiles, const int* ends,
                             const int* first, const int* pages, const int* step, int site, int sites, int frames,
                             int all_tiles, int heads, int pages_width, int page_lines, float scale) {
    return run(programs, 1, THREADS, [=] {
        row_attention(products, matrix, out, tiles, ends, first, pages, step, site, sites, frames, all_tiles, heads,
                      pages_width, page_lines, scale);
    });
}
