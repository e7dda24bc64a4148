// Levels of a U-Net for rows of at most 32 new frames: a cluster of eight programs computes one row of one copy of
// guidance, from layer to layer. Program r of a cluster has head r, hidden channels 128 r to 128 r + 127 of the
// feed-forward layers, and channels 32 r to 32 r + 31 of convolutions and of the residual stream.
//
// Programs send their results to one another's shared memory, where barriers count the bytes. Between two sends to the
// same place the programs wait for another exchange, so all of them have read the values of the first send.
//
// Of a product's result, lane l has rows l / 4 and l / 4 + 8 of each 16, and two neighbouring columns of each tile of 8.

constexpr int CHANNELS = 256, INNER = 512, HEAD = 64, PROGRAMS = 8, SHARE = CHANNELS / PROGRAMS;
constexpr int ROWS = 32, THREADS = 256, PAGE = 64, TAIL = 2;
constexpr int UNIT = 32768, SLOTS = 4;            // bytes of weights that are copied at once; slots for such units
constexpr int RESNET_UNITS = 4, BLOCK_UNITS = 8;  // units of one program's weights
constexpr int CONV_STEP = 4 * 32 * 16, CONV_STEPS = 3;
constexpr int CONV_SIZE = 8 * CONV_STEPS * CONV_STEP;
constexpr int QKV_BIAS = 0, WIDE_BIAS = 192, OUT_BIAS = 320, NARROW_BIAS = 352, PARAMS = 384;
constexpr int CONV_BIAS = 0, SHORTCUT_BIAS = 2 * SHARE, NORMS = 3 * SHARE, LEVEL_PARAMS = NORMS + 4 * CHANNELS;
constexpr int WIDTH = CHANNELS + 8, HEAD_WIDTH = HEAD + 8, HIDDEN_WIDTH = 128 + 8;  // padded against bank conflicts
constexpr int SENT = ROWS * CHANNELS * 2;  // bytes of all channels
constexpr float HIDDEN_SCORE = -1e30f;

constexpr int AT_PARAMS = SLOTS * UNIT;
constexpr int AT_LEVEL = AT_PARAMS + 2 * PARAMS * 4;
constexpr int AT_RECEIVED = AT_LEVEL + LEVEL_PARAMS * 4;  // sorted by sender
constexpr int AT_STREAM = AT_RECEIVED + SENT;             // first the tail, then the rows
constexpr int AT_CONV = AT_STREAM + (TAIL + ROWS) * WIDTH * 2;  // sorted by sender; or queries, mixed values, new keys
constexpr int AT_QUERY = AT_CONV;
constexpr int AT_MIXED = AT_QUERY + ROWS * HEAD_WIDTH * 2;
constexpr int AT_NEW = AT_MIXED + ROWS * HEAD_WIDTH * 2;
constexpr int AT_PARTS = AT_NEW + 2 * ROWS * HEAD_WIDTH * 2;  // sums of the warps; or normalized rows, and hidden channels
constexpr int PARTS_SIZE = ROWS * SHARE * 4;                  // bytes of one warp's sums
constexpr int AT_NORMAL = AT_PARTS;
constexpr int AT_HIDDEN = AT_NORMAL + (TAIL + ROWS) * WIDTH * 2;
constexpr int AT_STATS = AT_PARTS + 8 * PARTS_SIZE;
constexpr int AT_PAGES = AT_STATS + 8 * 4 * 32 * 4;
constexpr int AT_BARRIERS = AT_PAGES + 256 * 4;
constexpr int OF_PARAMS = SLOTS * 8, OF_LEVEL = OF_PARAMS + 16, OF_RECEIVED = OF_LEVEL + 8, OF_STREAM = OF_RECEIVED + 8;
constexpr int OF_CONV = OF_STREAM + 8, BARRIERS = SLOTS + 6;
constexpr int AT_READERS = AT_BARRIERS + BARRIERS * 8;
constexpr int SHARED = AT_READERS + 3 * 4;
static_assert(AT_HIDDEN + ROWS * HIDDEN_WIDTH * 2 <= AT_STATS && AT_CONV + SENT <= AT_PARTS && SHARED <= 232448, "sizes");

// Maxima and sums over 4 or 8 neighbouring lanes of a warp.

DEVICE float quad_max(float v) {
    v = fmaxf(v, other_lane(v, 1));
    return fmaxf(v, other_lane(v, 2));
}

DEVICE float quad_sum(float v) {
    v += other_lane(v, 1);
    return v + other_lane(v, 2);
}

DEVICE float oct_sum(float v) {
    v = quad_sum(v);
    return v + other_lane(v, 4);
}

DEVICE float gelu(float x) {
    return quotient(x, 1.0f + exp2_of(-2.302208198f * x * (1.0f + 0.044715f * x * x)));
}

DEVICE float mish(float x) {
    const float e = exp2_of(fminf(x, 20.0f) * 1.4426950408889634f), n = e * (e + 2.0f);
    return x * quotient(n, n + 2.0f);
}

// Subtracts a row's mean and divides by its standard deviation. Eight lanes have the row.
DEVICE void standardize(float (&x)[32]) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i & 3] += x[i];
    const float mean = oct_sum(sum[0] + sum[1] + (sum[2] + sum[3])) / CHANNELS;
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] -= mean, sum[i & 3] += x[i] * x[i];
    const float scale = rsqrtf(oct_sum(sum[0] + sum[1] + (sum[2] + sum[3])) / CHANNELS + 1e-5f);
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] *= scale;
}

// Computes LayerNorm of the stream, without weight and bias: the weights and biases of the next product include them.
DEVICE void normalize(u32 base, int thread) {
    const u32 place = ((thread >> 3) * WIDTH + (thread & 7) * 8) * 2, from = base + AT_STREAM + TAIL * WIDTH * 2 + place;
    float x[32];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 v = load_shared(from + i * 128);
        unpacked(v.x, x[8 * i], x[8 * i + 1]);
        unpacked(v.y, x[8 * i + 2], x[8 * i + 3]);
        unpacked(v.z, x[8 * i + 4], x[8 * i + 5]);
        unpacked(v.w, x[8 * i + 6], x[8 * i + 7]);
    }
    standardize(x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        store_shared(base + AT_NORMAL + place + i * 128,
                     {packed(x[8 * i], x[8 * i + 1]), packed(x[8 * i + 2], x[8 * i + 3]),
                      packed(x[8 * i + 4], x[8 * i + 5]), packed(x[8 * i + 6], x[8 * i + 7])});
}

// Computes LayerNorm and Mish of a convolution's result `made`: x[4 s + j] is channel 32 s + 4 (thread % 8) + j of row
// thread / 8.
DEVICE void activate(float (&x)[32], const char* made, const float* norm, int thread) {
    const int part = thread & 7;
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        const uint2 v = *(const uint2*)(made + s * (ROWS * SHARE * 2) + thread * 8);
        unpacked(v.x, x[4 * s], x[4 * s + 1]);
        unpacked(v.y, x[4 * s + 2], x[4 * s + 3]);
    }
    standardize(x);
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        const float4 factor = *(const float4*)(norm + s * SHARE + part * 4);
        const float4 summand = *(const float4*)(norm + CHANNELS + s * SHARE + part * 4);
        x[4 * s] = mish(x[4 * s] * factor.x + summand.x);
        x[4 * s + 1] = mish(x[4 * s + 1] * factor.y + summand.y);
        x[4 * s + 2] = mish(x[4 * s + 2] * factor.z + summand.z);
        x[4 * s + 3] = mish(x[4 * s + 3] * factor.w + summand.w);
    }
}

template <int COUNT>
DEVICE void clear(float (&sum)[COUNT][2][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][m][i] = 0;
}

// Adds the product of 32 rows of 32 inputs with COUNT tiles of eight outputs. stride: bytes from a tile to the next.
template <int COUNT>
DEVICE void add_step(float (&sum)[COUNT][2][4], u32 inputs, int width, u32 weights, int stride, int lane) {
    u32 a[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int s = 0; s < 2; ++s) load_rows(a[m][s], inputs + (m * 16 * width + s * 16) * 2, width, lane);
#pragma unroll
    for (int n = 0; n < COUNT; ++n) {
        const uint4 b = load_shared(weights + n * stride + lane * 16);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            multiply(sum[n][m], a[m][0], b.x, b.y);
            multiply(sum[n][m], a[m][1], b.z, b.w);
        }
    }
}

// Multiplies the normalized rows with COUNT units of 64 outputs; a warp computes eight outputs of each unit.
template <int COUNT>
DEVICE void wide_product(float (&sum)[COUNT][2][4], u32 base, int warp, int lane) {
    clear(sum);
#pragma unroll
    for (int k = 0; k < CHANNELS / 32; ++k)
        add_step(sum, base + AT_NORMAL + k * 64, WIDTH, base + (warp * 8 + k) * 512, UNIT, lane);
}

// Multiplies this program's inputs, a part of the product's inputs, and sends the sums to the programs that add up the
// parts. Warp w computes the outputs of program w, with weights that begin at `weights`. A lane has eight neighbouring
// channels of each row.
template <int STEPS>
DEVICE void shared_product(u32 base, u32 inputs, int width, u32 weights, int rank, int warp, int lane) {
    float sum[4][2][4];
    clear(sum);
#pragma unroll
    for (int k = 0; k < STEPS; ++k) add_step(sum, inputs + k * 64, width, weights + k * CONV_STEP, 512, lane);
    const u32 target = address_in(base + AT_RECEIVED, warp) + rank * (ROWS * SHARE * 2) + lane * 16;
    const u32 barrier = address_in(base + AT_BARRIERS + OF_RECEIVED, warp);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            send(target + (m * 2 + h) * 512,
                 {packed(sum[0][m][2 * h], sum[0][m][2 * h + 1]), packed(sum[1][m][2 * h], sum[1][m][2 * h + 1]),
                  packed(sum[2][m][2 * h], sum[2][m][2 * h + 1]), packed(sum[3][m][2 * h], sum[3][m][2 * h + 1])},
                 barrier);
}

// Stores a warp's part of the sums of 32 outputs. The places of chunks of four values avoid bank conflicts.
DEVICE void keep_part(const float (&sum)[4][2][4], char* memory, int warp, int lane) {
    const int quad = lane >> 2, pair = lane & 3;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float* to = (float*)(memory + AT_PARTS + warp * PARTS_SIZE + (m * 16 + h * 8 + quad) * (SHARE * 4)) +
                            ((pair * 2 + i) ^ quad) * 4;
                *(float4*)to = {sum[2 * i][m][2 * h], sum[2 * i][m][2 * h + 1], sum[2 * i + 1][m][2 * h],
                                sum[2 * i + 1][m][2 * h + 1]};
            }
}

// Adds the parts of all warps to `all`: four channels of row thread / 8, the first of them is 4 (thread % 8).
DEVICE void add_parts(float (&all)[4], const char* memory, int thread) {
    const int row = thread >> 3, chunk = (thread & 7) ^ (row & 7);
#pragma unroll
    for (int from = 0; from < 8; ++from) {
        const float4 part = *(const float4*)(memory + AT_PARTS + from * PARTS_SIZE + row * (SHARE * 4) + chunk * 16);
        all[0] += part.x, all[1] += part.y, all[2] += part.z, all[3] += part.w;
    }
}

// Sends four channels of a row to all programs. at, barrier: this program's addresses; each program has the same ones.
DEVICE void tell(const float (&x)[4], u32 at, u32 barrier) {
    const uint2 v = {packed(x[0], x[1]), packed(x[2], x[3])};
#pragma unroll
    for (int to = 0; to < PROGRAMS; ++to) send(address_in(at, to), v, address_in(barrier, to));
}

// A page of keys and values of one head, as the lanes of a warp multiply them.
struct Page {
    uint4 key[8][2], value[4][4];

    // Loads keys and values before `first`; the rest is zero until `add_new`.
    DEVICE void load(const u16* page, int place, int first, int quad, int pair) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const u16* at = page + (u64)(n * 8 + quad) * (2 * INNER) + pair * 8;
            key[n][0] = key[n][1] = {0, 0, 0, 0};
            if (place + n * 8 + quad < first) key[n][0] = load_global(at), key[n][1] = load_global(at + 32);
        }
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = value_row(s, i, pair);
                value[s][i] = {0, 0, 0, 0};
                if (place + k < first) value[s][i] = load_global(page + (u64)k * (2 * INNER) + INNER + quad * 8);
            }
    }
    // Adds the new keys and values, which are at `keys` in shared memory. count: number of new keys.
    DEVICE void add_new(u32 keys, int place, int first, int count, int quad, int pair) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int k = place + n * 8 + quad - first;
            const u32 at = keys + (k * HEAD_WIDTH + pair * 8) * 2;
            if (k >= 0 && k < count) key[n][0] = load_shared(at), key[n][1] = load_shared(at + 64);
        }
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = place + value_row(s, i, pair) - first;
                if (k >= 0 && k < count) value[s][i] = load_shared(keys + ((ROWS + k) * HEAD_WIDTH + quad * 8) * 2);
            }
    }
    static DEVICE int value_row(int s, int i, int pair) { return s * 16 + pair * 2 + (i & 1) + (i >> 1) * 8; }
};

// State of the online softmax of a warp's sixteen queries.
struct Mixed {
    float most[2], total[2], sum[8][4];

    DEVICE void begin() {
        most[0] = most[1] = HIDDEN_SCORE, total[0] = total[1] = 0;
#pragma unroll
        for (int t = 0; t < 8; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[t][i] = 0;
    }
    // Adds a page. end_low, end_high: ends of the keys that this lane's two queries attend to.
    DEVICE void add(const u32 (&query)[2][2][4], const Page& page, int place, int end_low, int end_high, float scale, int pair) {
        float score[8][4], top[2] = {HIDDEN_SCORE, HIDDEN_SCORE};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0;
            multiply(score[n], query[0][0], page.key[n][0].x, page.key[n][0].y);
            multiply(score[n], query[0][1], page.key[n][0].z, page.key[n][0].w);
            multiply(score[n], query[1][0], page.key[n][1].x, page.key[n][1].y);
            multiply(score[n], query[1][1], page.key[n][1].z, page.key[n][1].w);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = place + n * 8 + pair * 2 + (i & 1);
                score[n][i] = key < (i < 2 ? end_low : end_high) ? score[n][i] * scale : HIDDEN_SCORE;
                top[i >> 1] = fmaxf(top[i >> 1], score[n][i]);
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float now = fmaxf(most[h], quad_max(top[h])), shrink = exp2_of(most[h] - now);
            most[h] = now;
            total[h] *= shrink;
#pragma unroll
            for (int t = 0; t < 8; ++t) sum[t][2 * h] *= shrink, sum[t][2 * h + 1] *= shrink;
        }
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                score[n][i] = exp2_of(score[n][i] - most[i >> 1]);
                total[i >> 1] += score[n][i];
            }
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const u32 a[4] = {packed(score[2 * s][0], score[2 * s][1]), packed(score[2 * s][2], score[2 * s][3]),
                              packed(score[2 * s + 1][0], score[2 * s + 1][1]),
                              packed(score[2 * s + 1][2], score[2 * s + 1][3])};
            u32 v[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint4 value = page.value[s][i];
                v[i][0] = value.x, v[i][1] = value.y, v[i][2] = value.z, v[i][3] = value.w;
            }
#pragma unroll
            for (int t = 0; t < 8; ++t) {
                const u32 order = t & 1 ? 0x7632 : 0x5410;
                multiply(sum[t], a, __byte_perm(v[0][t >> 1], v[1][t >> 1], order),
                         __byte_perm(v[2][t >> 1], v[3][t >> 1], order));
            }
        }
    }
    // Stores this warp's part for `mix`. Four warps share sixteen queries, and each of the four reads other pages.
    DEVICE void keep(char* memory, int warp, int lane) {
        float *parts = (float*)(memory + AT_PARTS + warp * PARTS_SIZE) + lane, *stats = (float*)(memory + AT_STATS) + warp * 128 + lane;
#pragma unroll
        for (int t = 0; t < 8; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) parts[(t * 4 + i) * 32] = sum[t][i];
#pragma unroll
        for (int h = 0; h < 2; ++h) stats[h * 32] = most[h], stats[(2 + h) * 32] = quad_sum(total[h]);
    }
};

// Merges the parts of the four warps. A warp merges one of a lane's two queries, and half of the lane's channels.
DEVICE void mix(char* memory, int warp, int lane) {
    const int tile = warp & 1, h = warp >> 1 & 1, c = warp >> 2;
    float most = HIDDEN_SCORE, total = 0, sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, theirs[4];
#pragma unroll
    for (int group = 0; group < 4; ++group) {
        theirs[group] = ((const float*)(memory + AT_STATS))[((group * 2 + tile) * 4 + h) * 32 + lane];
        most = fmaxf(most, theirs[group]);
    }
#pragma unroll
    for (int group = 0; group < 4; ++group) {
        const float shrink = exp2_of(theirs[group] - most);
        const float* parts = (const float*)(memory + AT_PARTS + (group * 2 + tile) * PARTS_SIZE) + lane;
        total += shrink * ((const float*)(memory + AT_STATS))[((group * 2 + tile) * 4 + 2 + h) * 32 + lane];
#pragma unroll
        for (int t = 0; t < 8; ++t) sum[t] += shrink * parts[(t * 4 + 2 * h + c) * 32];
    }
    const float share = quotient(1.0f, total);
    const int row = tile * 16 + (lane >> 2) + 8 * h, channel = (lane & 3) * 16 + c * 8;
    *(uint4*)(memory + AT_MIXED + (row * HEAD_WIDTH + channel) * 2) = {
        packed(sum[0] * share, sum[1] * share), packed(sum[2] * share, sum[3] * share),
        packed(sum[4] * share, sum[5] * share), packed(sum[6] * share, sum[7] * share)};
}

KERNEL(THREADS, 1) CLUSTER(PROGRAMS)
unet_levels(u16* __restrict__ x, const char* __restrict__ weights, const float* __restrict__ params,
           const float* __restrict__ level_params, const float* __restrict__ entry, u16* keys,
           const u16* __restrict__ before, u16* __restrict__ after, const u16* __restrict__ times,
           const int* __restrict__ tiles, const int* __restrict__ ends, const int* __restrict__ position,
           const int* __restrict__ pages, const int* __restrict__ step, int site, int sites, int levels, int blocks,
           int with_resnets, int first_tail, int tail_width, int first_level, int all_levels, int frames, int rows,
           int pages_width, u64 page_size, float scale) {
    char* memory = shared_memory;
    const u32 base = shared_address(memory), barriers = base + AT_BARRIERS;
    const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, quad = lane >> 2, pair = lane & 3;
    const int rank = blockIdx.x % PROGRAMS, tile = blockIdx.x / PROGRAMS >> 1, copy = blockIdx.x / PROGRAMS & 1;
    const int row = tiles[3 * tile], start = tiles[3 * tile + 1], count = min(tiles[3 * tile + 2], ROWS);
    if (count == 0 || ends[start] == 0) return;  // padding: all programs of the cluster return

    // Fetch weights and parameters, in the order of their use.
    const int level_units = (with_resnets ? RESNET_UNITS : 0) + blocks * BLOCK_UNITS, units = levels * level_units;
    const char* my_weights = weights + (u64)rank * units * UNIT;
    auto fetch_unit = [&](int unit) {
        if (unit < units)
            fetch(base + unit % SLOTS * UNIT, my_weights + (u64)unit * UNIT, UNIT, barriers + unit % SLOTS * 8);
    };
    auto fetch_params = [&](int block) {
        if (block < levels * blocks)
            fetch(base + AT_PARAMS + (block & 1) * PARAMS * 4, params + ((u64)block * PROGRAMS + rank) * PARAMS,
                  PARAMS * 4, barriers + OF_PARAMS + (block & 1) * 8);
    };
    auto fetch_level = [&](int level) {
        if (with_resnets && level < levels)
            fetch(base + AT_LEVEL, level_params + ((u64)level * PROGRAMS + rank) * LEVEL_PARAMS, LEVEL_PARAMS * 4,
                  barriers + OF_LEVEL);
    };
    // Counts the warps that have read a slot. The last of them fetches this unit, which replaces the slot's weights.
    auto read_by = [&](int counter, int warps, int unit) {
        __syncwarp();
        if (lane == 0 && add_shared(base + AT_READERS + counter * 4, 1) % warps == warps - 1) fetch_unit(unit);
    };
    if (thread == 0) {
        make_barriers(barriers, BARRIERS);
        for (int i = 0; i < 3; ++i) *(u32*)(memory + AT_READERS + i * 4) = 0;
        for (int unit = 0; unit < SLOTS; ++unit) fetch_unit(unit);
        fetch_params(0);
        fetch_params(1);
        fetch_level(0);
        expect(barriers + OF_RECEIVED, SENT);
        expect(barriers + OF_STREAM, SENT);
        expect(barriers + OF_CONV, SENT);
    }
    __syncthreads();
    cluster_arrive();  // this program's barriers are initialised

    // The row's old keys end at `first`, all its keys at `last`; end_low, end_high: the ends for this thread's queries.
    const int tile_row = (warp & 1) * 16 + quad, group = warp >> 1, first = position[start];
    int last = 0;
    for (int i = 0; i < count; ++i) last = max(last, ends[start + i]);
    const int end_low = tile_row < count ? ends[start + tile_row] : last;
    const int end_high = tile_row + 8 < count ? ends[start + tile_row + 8] : last;
    int* page_ids = (int*)(memory + AT_PAGES);
    if (thread * PAGE < last) page_ids[thread] = pages[row * pages_width + thread];

    // `own` is this thread's channels of the residual stream, in float32. Shared memory has all channels, in 16 bits.
    const int own_row = thread >> 3, own_part = (thread & 7) * 4, own_channel = rank * SHARE + own_part;
    u16* source = x + (u64)(copy * frames + start) * CHANNELS;
    const float* ahead = with_resnets ? nullptr : entry;
    for (int i = thread; i < ROWS * CHANNELS / 2; i += THREADS) {
        const int r = i / (CHANNELS / 2), c = i % (CHANNELS / 2) * 2;
        float low = 0, high = 0;
        if (r < count) unpacked(*(const u32*)(source + r * CHANNELS + c), low, high);
        if (ahead) low += ahead[c], high += ahead[c + 1];
        *(u32*)(memory + AT_STREAM + ((TAIL + r) * WIDTH + c) * 2) = packed(low, high);
    }
    float own[4] = {0, 0, 0, 0};
    if (!with_resnets) {
        if (own_row < count)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                unpacked(*(const u32*)(source + own_row * CHANNELS + own_channel + 2 * i), own[2 * i], own[2 * i + 1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) own[j] += entry[own_channel + j];
    }
    const u32 own_stream = base + AT_STREAM + ((TAIL + own_row) * WIDTH + own_channel) * 2;
    const u32 own_sent = rank * (ROWS * SHARE * 2) + thread * 8;
    __syncthreads();
    cluster_wait();

    // Each warp loads the first page of its keys for the next attention long before it uses the page.
    const u16* slab = keys + (((u64)step[1] * sites + site) * 2 + copy) * PAGE * (2 * INNER) + rank * HEAD;
    const u64 next_slab = (u64)2 * PAGE * (2 * INNER);
    Page page;
    auto load_page = [&](int number) {
        if (number * PAGE < last) page.load(slab + (u64)page_ids[number] * page_size, number * PAGE, first, quad, pair);
    };

    // load_tail, put_tail: copy a convolution's inputs before this chunk to the lines before the row's first line.
    // leave_tail: stores the convolution's last inputs for the next chunk.
    const u64 line = (u64)(copy * rows + row) * TAIL;
    auto load_tail = [&](int level) {  // threads 0 to 63: of the first convolution, 64 to 127: of the second one
        uint4 v = {0, 0, 0, 0};
        if (level < levels && thread < 128)
            v = load_global(before + (line + (thread >> 5 & 1)) * tail_width + first_tail + (2 * level + (thread >> 6)) * CHANNELS + (thread & 31) * 8);
        return v;
    };
    auto put_tail = [&](uint4 tail, int number, int at) {
        if (thread >> 6 == number) store_shared(base + at + ((thread >> 5 & 1) * WIDTH + (thread & 31) * 8) * 2, tail);
    };
    auto leave_tail = [&](int conv, int at) {
        const int i = thread >> 2 & 1, r = count - TAIL + i, channel = rank * SHARE + (thread & 3) * 8;
        if (thread < 8 && r >= 0)
            *(uint4*)(after + (line + i) * tail_width + first_tail + conv * CHANNELS + channel) =
                load_shared(base + at + ((TAIL + r) * WIDTH + channel) * 2);
    };

    int unit = 0, turn = 0;      // the next unit; how often every slot has been used
    int exchanges = 0, told = 0;  // ended phases of the barriers OF_RECEIVED and OF_STREAM
    const float* level_at = (const float*)(memory + AT_LEVEL);
    uint4 tail = {0, 0, 0, 0};
    if (with_resnets) tail = load_tail(0);

    for (int level = 0; level < levels; ++level) {
        if (with_resnets) {
            // Each warp multiplies a part of the inputs, for all 32 channels of this program.
            if (level > 0) {
                wait_for(barriers + OF_STREAM, told++ & 1);
                if (thread == 0) expect(barriers + OF_STREAM, SENT);
            }
            put_tail(tail, 0, AT_STREAM);
            __syncthreads();
            leave_tail(2 * level, AT_STREAM);
            auto convolve = [&](float (&sum)[4][2][4], int at, u32 from) {
                clear(sum);
#pragma unroll
                for (int k = 0; k < CONV_STEPS; ++k) {
                    const int place = warp * CONV_STEPS + k;
                    add_step(sum, base + at + (place >> 3) * WIDTH * 2 + (place & 7) * 64, WIDTH, from + place * CONV_STEP, 512, lane);
                }
            };
            float sum[4][2][4], made[4];
            wait_for(barriers + OF_LEVEL, level & 1);
            wait_for(barriers, turn & 1);
            wait_for(barriers + 8, turn & 1);
            convolve(sum, AT_STREAM, base);
            keep_part(sum, memory, warp, lane);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < 4; ++j) made[j] = level_at[CONV_BIAS + own_part + j];
            add_parts(made, memory, thread);
            tell(made, base + AT_CONV + own_sent, barriers + OF_CONV);
            clear(sum);
            add_step(sum, base + AT_STREAM + TAIL * WIDTH * 2 + warp * 64, WIDTH, base + CONV_SIZE + warp * CONV_STEP, 512, lane);
            __syncthreads();
            if (thread == 0)
                for (int i = 0; i < 2; ++i) fetch_unit(unit + SLOTS + i);
            keep_part(sum, memory, warp, lane);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < 4; ++j) own[j] = level_at[SHORTCUT_BIAS + own_part + j];
            add_parts(own, memory, thread);

            float h[32];
            const u16* time = times + ((u64)step[0] * all_levels + first_level + level) * CHANNELS + own_part;
            uint2 of_time[8];
#pragma unroll
            for (int s = 0; s < 8; ++s) of_time[s] = *(const uint2*)(time + s * SHARE);
            wait_for(barriers + OF_CONV, level & 1);
            activate(h, memory + AT_CONV, level_at + NORMS, thread);
            __syncthreads();
            if (thread == 0) expect(barriers + OF_CONV, SENT);
            put_tail(tail, 1, AT_NORMAL);
#pragma unroll
            for (int s = 0; s < 8; ++s) {
                float t[4];
                unpacked(of_time[s].x, t[0], t[1]);
                unpacked(of_time[s].y, t[2], t[3]);
                *(uint2*)(memory + AT_NORMAL + ((TAIL + own_row) * WIDTH + s * SHARE + own_part) * 2) = {
                    packed(h[4 * s] + t[0], h[4 * s + 1] + t[1]), packed(h[4 * s + 2] + t[2], h[4 * s + 3] + t[3])};
            }
            __syncthreads();
            leave_tail(2 * level + 1, AT_NORMAL);
            wait_for(barriers + 16, turn & 1);
            wait_for(barriers + 24, turn & 1);
            convolve(sum, AT_NORMAL, base + 2 * UNIT);
            __syncthreads();
            if (thread == 0)
                for (int i = 2; i < 4; ++i) fetch_unit(unit + SLOTS + i);
            keep_part(sum, memory, warp, lane);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < 4; ++j) made[j] = level_at[CONV_BIAS + SHARE + own_part + j];
            add_parts(made, memory, thread);
            tell(made, base + AT_RECEIVED + own_sent, barriers + OF_RECEIVED);
            wait_for(barriers + OF_RECEIVED, exchanges++ & 1);
            activate(h, memory + AT_RECEIVED, level_at + NORMS + 2 * CHANNELS, thread);
            if (thread == 0) expect(barriers + OF_RECEIVED, SENT);
#pragma unroll
            for (int s = 0; s < 8; ++s)
                if (s == rank)
#pragma unroll
                    for (int j = 0; j < 4; ++j) own[j] += h[4 * s + j];
            tell(own, own_stream, barriers + OF_STREAM);
            unit += RESNET_UNITS, ++turn;
        }
        load_page(group);

        for (int block = 0; block < blocks; ++block) {
            const int number = level * blocks + block;
            const float* biases = (const float*)(memory + AT_PARAMS + (number & 1) * PARAMS * 4);
            // Adds the other programs' shares to this program's channels.
            auto gather = [&](const float* bias) {
                wait_for(barriers + OF_RECEIVED, exchanges++ & 1);
#pragma unroll
                for (int from = 0; from < PROGRAMS; ++from) {
                    const uint2 v = *(const uint2*)(memory + AT_RECEIVED + from * (ROWS * SHARE * 2) + thread * 8);
                    float part[4];
                    unpacked(v.x, part[0], part[1]);
                    unpacked(v.y, part[2], part[3]);
#pragma unroll
                    for (int j = 0; j < 4; ++j) own[j] += part[j];
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) own[j] += bias[own_part + j];
                if (thread == 0) expect(barriers + OF_RECEIVED, SENT);
            };
            auto normal = [&] {
                wait_for(barriers + OF_STREAM, told++ & 1);
                if (thread == 0) expect(barriers + OF_STREAM, SENT);
                normalize(base, thread);
                __syncthreads();
            };
            if (number == 0 && !with_resnets) {
                normalize(base, thread);
                __syncthreads();
            } else
                normal();
            if (thread == 0) {
                if (number > 0) fetch_params(number + 1);
                if (block == 0) fetch_level(level + 1);
            }

            // Queries, keys and values of this program's head.
            {
                float sum[3][2][4];
                for (int i = 0; i < 3; ++i) wait_for(barriers + i * 8, turn & 1);
                wait_for(barriers + OF_PARAMS + (number & 1) * 8, number >> 1 & 1);
                wide_product<3>(sum, base, warp, lane);
                const int channel = warp * 8 + pair * 2;
#pragma unroll
                for (int u = 0; u < 3; ++u) {
                    const float low = biases[QKV_BIAS + u * HEAD + channel], high = biases[QKV_BIAS + u * HEAD + channel + 1];
                    const int at = u == 0 ? AT_QUERY : AT_NEW + (u - 1) * ROWS * HEAD_WIDTH * 2;
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        *(u32*)(memory + at + ((quad + 8 * i) * HEAD_WIDTH + channel) * 2) =
                            packed(sum[u][i >> 1][(i & 1) * 2] + low, sum[u][i >> 1][(i & 1) * 2 + 1] + high);
                }
            }
            __syncthreads();
            if (thread == 0)
                for (int i = 0; i < 3; ++i) fetch_unit(unit + SLOTS + i);

            // Attention: a warp has sixteen queries and every fourth page.
            {
                u32 query[2][2][4];
#pragma unroll
                for (int g = 0; g < 2; ++g) {
                    const u32 at = base + AT_QUERY + (tile_row * HEAD_WIDTH + g * 32 + pair * 8) * 2;
                    const uint4 low = load_shared(at), high = load_shared(at + 8 * HEAD_WIDTH * 2);
                    query[g][0][0] = low.x, query[g][0][1] = high.x, query[g][0][2] = low.y, query[g][0][3] = high.y;
                    query[g][1][0] = low.z, query[g][1][1] = high.z, query[g][1][2] = low.w, query[g][1][3] = high.w;
                }
                Mixed mixed;
                mixed.begin();
                for (int number = group; number * PAGE < last; number += 4) {
                    const int place = number * PAGE;
                    if (place + PAGE > first) page.add_new(base + AT_NEW, place, first, count, quad, pair);
                    mixed.add(query, page, place, end_low, end_high, scale, pair);
                    load_page(number + 4);
                }
                mixed.keep(memory, warp, lane);
            }
            // The new keys and values go to their pages.
#pragma unroll
            for (int i = thread; i < 2 * ROWS * HEAD / 8; i += THREADS) {
                const int which = i >> 8, r = i >> 3 & 31, channel = (i & 7) * 8, at = first + r;
                if (r < count)
                    *(uint4*)((u16*)slab + (u64)page_ids[at / PAGE] * page_size + (u64)(at % PAGE) * (2 * INNER) +
                              which * INNER + channel) =
                        load_shared(base + AT_NEW + ((which * ROWS + r) * HEAD_WIDTH + channel) * 2);
            }
            slab += next_slab;
            __syncthreads();
            mix(memory, warp, lane);
            __syncthreads();
            wait_for(barriers + 3 * 8, turn & 1);
            shared_product<2>(base, base + AT_MIXED, HEAD_WIDTH, base + 3 * UNIT + warp * 4096, rank, warp, lane);
            read_by(0, 8, unit + 7);
            gather(biases + OUT_BIAS);
            tell(own, own_stream, barriers + OF_STREAM);
            normal();

            // The feed-forward layers.
            {
                float sum[2][2][4];
                wait_for(barriers, turn + 1 & 1);
                wait_for(barriers + 8, turn + 1 & 1);
                wide_product<2>(sum, base, warp, lane);
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const int channel = u * 64 + warp * 8 + pair * 2;
                    const float low = biases[WIDE_BIAS + channel], high = biases[WIDE_BIAS + channel + 1];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        *(u32*)(memory + AT_HIDDEN + ((quad + 8 * i) * HIDDEN_WIDTH + channel) * 2) =
                            packed(gelu(sum[u][i >> 1][(i & 1) * 2] + low), gelu(sum[u][i >> 1][(i & 1) * 2 + 1] + high));
                }
            }
            __syncthreads();
            if (thread == 0)
                for (int i = 0; i < 2; ++i) fetch_unit(unit + BLOCK_UNITS + i);
            const int slot = 2 + (warp >> 2);
            wait_for(barriers + slot * 8, turn + 1 & 1);
            shared_product<4>(base, base + AT_HIDDEN, HIDDEN_WIDTH, base + slot * UNIT + (warp & 3) * 8192, rank, warp, lane);
            read_by(slot - 1, 4, unit + BLOCK_UNITS + slot);
            unit += BLOCK_UNITS, turn += 2;
            if (block + 1 < blocks)
                load_page(group);
            else if (with_resnets)
                tail = load_tail(level + 1);
            gather(biases + NARROW_BIAS);
            if (number + 1 < levels * blocks) tell(own, own_stream, barriers + OF_STREAM);
        }
    }
    if (own_row < count)
        *(uint2*)(source + own_row * CHANNELS + own_channel) = {packed(own[0], own[1]), packed(own[2], own[3])};
}
