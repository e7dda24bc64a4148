// Attention of 64 queries of one row and one head. A program reads the row's keys and values in tiles of 64.
//
// While the threads compute the softmax of a tile's scores, the tensor cores multiply the previous tile's weights and
// values. A thread has the scores of two queries, r and r + 8, and of two neighbouring keys of each 8.

constexpr int HEAD = 64, KEYS = 64, THREADS = 128, RESIDENT = 4;
constexpr int TILE = KEYS * LINE, SLOT = 2 * TILE;  // a slot: a tile of keys, and the values of the tile before
constexpr int AT_QUERIES = 2 * SLOT, AT_BARRIERS = AT_QUERIES + TILE, SHARED = AT_BARRIERS + 16;
constexpr float HIDDEN_SCORE = -1e30f, LEAST = -1e28f;  // a hidden score is far below the least maximum
constexpr float SLACK = 8;  // weights may grow to 2^8 before sums are scaled down
static_assert(HEAD * 2 == LINE && RESIDENT * (SHARED + 1024) <= 228 * 1024, "sizes");

DEVICE float quad_sum(float v) {
    v += other_lane(v, 1);
    return v + other_lane(v, 2);
}

struct Softmax {  // online softmax of the scores of two queries
    float most[2] = {LEAST, LEAST}, sum[2] = {0, 0}, factor[2];  // factor: scales the sums of earlier tiles

    // Replaces the scores of a tile by weights, and adds the weights to `sum`.
    DEVICE void absorb(float (&scores)[32], float scale) {
        float next[4] = {LEAST, LEAST, LEAST, LEAST}, part[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            float& of = next[(i & 2) + (i >> 2 & 1)];
            of = fmaxf(of, scores[i]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) next[r] = fmaxf(next[2 * r], next[2 * r + 1]);
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2)
#pragma unroll
            for (int r = 0; r < 2; ++r) next[r] = fmaxf(next[r], other_lane(next[r], mask));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float before = most[r];
            if (next[r] * scale > before + SLACK) most[r] = next[r] * scale;
            factor[r] = exp2_of(before - most[r]);
        }
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            scores[i] = exp2_of(scores[i] * scale - most[i >> 1 & 1]);
            part[i & 3] += scores[i];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[r] = sum[r] * factor[r] + (part[2 * r] + part[2 * r + 1]);
    }
};

// products: [2 frames, 3 inner]. matrix: `products` if there are no pages, else their lines [pages · page_lines, 2 inner],
// where a page has 64 lines for each step, site and copy.
KERNEL(THREADS, RESIDENT)
row_attention(const __grid_constant__ TensorMap products, const __grid_constant__ TensorMap matrix, u16* __restrict__ out,
              const int* __restrict__ tiles, const int* __restrict__ ends, const int* __restrict__ first,
              const int* __restrict__ pages, const int* __restrict__ step, int site, int sites, int frames, int all_tiles,
              int heads, int pages_width, int page_lines, float scale) {
    const int thread = threadIdx.x, lane = thread & 31;
    const int* mine = tiles + 3 * (blockIdx.x % all_tiles);
    const int head = blockIdx.x / all_tiles % heads, copy = blockIdx.x / all_tiles / heads;
    const int row = mine[0], start = mine[1], count = mine[2];
    if (!count) return;
    const int last = ends[start + count - 1];  // the largest end, because `ends` never decreases within a row
    const int key_tiles = max(1, (last + KEYS - 1) / KEYS);

    const int inner = heads * HEAD, keys_column = (page_lines ? 0 : inner) + head * HEAD;
    const int first_line = page_lines ? ((*step * sites + site) * 2 + copy) * KEYS : copy * frames + first[row];
    const auto line_of = [&](int number) {
        return first_line + (page_lines ? pages[row * pages_width + number] * page_lines : number * KEYS);
    };
    const u32 memory = shared_address(shared_memory), barriers = memory + AT_BARRIERS;
    int line = line_of(0);
    // Fetches a tile of keys, and the values of the previous tile. One thread calls it. Queries come with the first keys.
    const auto fetch_slot = [&](int number) {
        const u32 slot = memory + (number & 1) * SLOT, barrier = barriers + (number & 1) * 8;
        expect(barrier, number < key_tiles ? 2 * TILE : TILE);
        if (number) fetch_tile(slot + TILE, matrix, keys_column + inner, line, barrier);
        if (number == key_tiles) return;
        line = line_of(number);
        fetch_tile(slot, matrix, keys_column, line, barrier);
    };
    if (!thread) {
        make_barriers(barriers, 2);
        fetch_slot(0);
        fetch_tile(memory + AT_QUERIES, products, head * HEAD, copy * frames + start, barriers);
    }

    const int above = (thread >> 5) * 16 + (lane >> 2), below = above + 8, pair = 2 * (lane & 3);
    const int end_above = above < count ? ends[start + above] : last, end_below = below < count ? ends[start + below] : last;
    float scores[32], mixed[32];
    u32 weights[4][4];
    Softmax softmax;
#pragma unroll
    for (int i = 0; i < 32; ++i) mixed[i] = 0;

    const auto score = [&](u32 slot) {
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_lines(scores, (memory + AT_QUERIES) / 16 + 2 * i, slot / 16 + 2 * i, i > 0);
        end_products();
    };
    const auto mix = [&](u32 slot) {
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_columns(mixed, weights[i], (slot + TILE) / 16 + i * LINE);
        end_products();
    };
    const auto absorb = [&](int number) {
        settle(scores);
        if ((number + 1) * KEYS > min(end_above, end_below)) {
#pragma unroll
            for (int i = 0; i < 32; ++i)
                if (number * KEYS + 8 * (i >> 2) + pair + (i & 1) >= (i & 2 ? end_below : end_above)) scores[i] = HIDDEN_SCORE;
        }
        softmax.absorb(scores, scale);
    };
    const auto pack = [&] {
#pragma unroll
        for (int i = 0; i < 16; ++i) weights[i >> 2][i & 3] = packed(scores[2 * i], scores[2 * i + 1]);
    };

    __syncthreads();
    wait_for_copies(barriers, 0);
    begin_products();
    score(memory);
    if (!thread) fetch_slot(1);
    wait_for_products<0>();
    absorb(0);
    pack();
    for (int number = 1; number < key_tiles; ++number) {
        const u32 slot = memory + (number & 1) * SLOT;
        __syncthreads();  // all threads have read the other slot
        wait_for_copies(barriers + (number & 1) * 8, number >> 1 & 1);
        begin_products();
        score(slot);
        mix(slot);
        if (!thread) fetch_slot(number + 1);
        wait_for_products<1>();
        absorb(number);
        wait_for_products<0>();
        settle(mixed);
        if (any_lane(softmax.factor[0] != 1 || softmax.factor[1] != 1)) {
#pragma unroll
            for (int i = 0; i < 32; ++i) mixed[i] *= softmax.factor[i >> 1 & 1];
        }
        pack();
    }
    wait_for_copies(barriers + (key_tiles & 1) * 8, key_tiles >> 1 & 1);
    // Clear the lines after the row's last one: they may hold NaN, and a weight of 0 times NaN is NaN.
    const u32 slot = memory + (key_tiles & 1) * SLOT;
    for (int unit = (last - (key_tiles - 1) * KEYS) * 8 + thread; unit < KEYS * 8; unit += THREADS)
        store_shared(slot + TILE + unit * 16, {0, 0, 0, 0});
    publish();
    __syncthreads();
    begin_products();
    mix(slot);
    wait_for_products<0>();
    settle(mixed);

    u16* target = out + ((u64)copy * frames + start) * inner + head * HEAD + pair;
    for (int r = 0; r < 2; ++r) {
        // Padding attends to no key, and its result is 0.
        const float factor = quotient(1, fmaxf(quad_sum(softmax.sum[r]), 1e-30f));
        const int query = above + 8 * r;
        if (query >= count) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            *(u32*)(target + (u64)query * inner + 8 * i) =
                packed(mixed[4 * i + 2 * r] * factor, mixed[4 * i + 2 * r + 1] * factor);
    }
}
