// Runs a kernel on a CPU: every thread of a cluster is a fiber, and takes its turn until it waits for others.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <csetjmp>
#include <ucontext.h>
#include <utility>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct alignas(16) uint4 { u32 x, y, z, w; };
struct uint2 { u32 x, y; };
struct alignas(16) float4 { float x, y, z, w; };
using std::max;
using std::min;

struct Gate {  // of `size` threads
    int size, arrived = 0;
    u64 turn = 0;
};
struct Warp {
    Gate gate{32};
    u32 in[32][10];
    u32 out[32][4];
};
struct Index { int x; };
struct Fiber {
    ucontext_t context;  // where it begins
    jmp_buf place;       // where it goes on
    bool begun = false;
    std::unique_ptr<char[]> stack;
    int thread, program;
    bool done = false;
    u64 cluster_turn = 0;
};
constexpr int MEMORY = 232448;
static std::vector<Fiber> fibers;
static std::vector<Gate> blocks;
static std::vector<Warp> warps;
static std::vector<std::vector<char>> memories;
static Gate of_cluster{0};
static Fiber* self;
static ucontext_t first_home;
static jmp_buf home;
static std::function<void()> body;
static int first_block;
static int left;  // threads that have not ended

static void yield() {
    if (!_setjmp(self->place)) _longjmp(home, 1);
}
static void pass(Gate& gate, const std::function<void()>& last = {}) {
    u64 mine = gate.turn;
    if (++gate.arrived == gate.size) {
        gate.arrived = 0;
        if (last) last();
        ++gate.turn;
    } else
        while (gate.turn == mine) yield();
}

#define __restrict__
#define __align__(n)
#define DEVICE inline
#define __grid_constant__
#define KERNEL(threads, resident) static void
#define CLUSTER(programs)
#define threadIdx (Index{self->thread})
#define blockIdx (Index{first_block + self->program})
#define shared_memory (memories[self->program].data())
static void __syncthreads() { pass(blocks[self->program]); }

DEVICE u32 shared_address(const void* p) {
    for (size_t i = 0; i < memories.size(); ++i) {
        const char* begin = memories[i].data();
        if (p >= begin && p < begin + MEMORY) return (u32)(i << 20 | ((const char*)p - begin));
    }
    abort();
}
static char* shared_at(u32 address) {
    if ((address & 0xfffff) >= MEMORY || address >> 20 >= memories.size()) { fprintf(stderr, "outside: %x\n", address); abort(); }
    return memories[address >> 20].data() + (address & 0xfffff);
}
static char* own_at(u32 address) {
    if ((int)(address >> 20) != self->program) { fprintf(stderr, "not its own: %x\n", address); abort(); }
    return shared_at(address);
}

static u16 to16(float x) { _Float16 h = (_Float16)x; u16 b; memcpy(&b, &h, 2); return b; }
static float from16(u16 b) { _Float16 h; memcpy(&h, &b, 2); return (float)h; }
DEVICE u32 packed(float low, float high) { return to16(low) | (u32)to16(high) << 16; }
DEVICE void unpacked(u32 both, float& low, float& high) { low = from16((u16)both); high = from16((u16)(both >> 16)); }

DEVICE Warp& own_warp() { return warps[self->program * (blocks[self->program].size / 32) + self->thread / 32]; }
DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Warp& w = own_warp();
    int lane = self->thread & 31;
    u32 given[10] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(&given[6], sum, 16);
    memcpy(w.in[lane], given, 40);
    pass(w.gate, [&w] {
        float A[16][16], B[16][8];
        for (int l = 0; l < 32; ++l) {
            int r = l >> 2, c = (l & 3) * 2;
            for (int i = 0; i < 4; ++i)
                unpacked(w.in[l][i], A[r + 8 * (i & 1)][c + 8 * (i >> 1)], A[r + 8 * (i & 1)][c + 8 * (i >> 1) + 1]);
            for (int i = 0; i < 2; ++i) unpacked(w.in[l][4 + i], B[c + 8 * i][r], B[c + 8 * i + 1][r]);
        }
        for (int l = 0; l < 32; ++l)
            for (int i = 0; i < 4; ++i) {
                int r = (l >> 2) + 8 * (i >> 1), c = (l & 3) * 2 + (i & 1);
                float s;
                memcpy(&s, &w.in[l][6 + i], 4);
                for (int k = 0; k < 16; ++k) s += A[r][k] * B[k][c];
                memcpy(&w.out[l][i], &s, 4);
            }
    });
    memcpy(sum, w.out[lane], 16);
}
DEVICE void load_rows(u32 (&a)[4], u32 address, int width, int lane) {
    if (address % 16 || width % 8) abort();
    const char* from = own_at(address);
    int r = lane >> 2, c = (lane & 3) * 2;
    for (int i = 0; i < 4; ++i) memcpy(&a[i], from + ((r + 8 * (i & 1)) * width + c + 8 * (i >> 1)) * 2, 4);
    yield();
}
DEVICE uint4 load_shared(u32 address) { if (address % 16) abort(); uint4 v; memcpy(&v, own_at(address), 16); return v; }
DEVICE void store_shared(u32 address, uint4 v) { if (address % 16) abort(); memcpy(own_at(address), &v, 16); }
DEVICE uint4 load_global(const void* p) { if ((uintptr_t)p % 16) abort(); uint4 v; memcpy(&v, p, 16); return v; }
DEVICE u32 address_in(u32 address, int program) { return (address & 0xfffff) | (u32)program << 20; }
DEVICE void cluster_arrive() {
    self->cluster_turn = of_cluster.turn;
    if (++of_cluster.arrived == of_cluster.size) of_cluster.arrived = 0, ++of_cluster.turn;
}
DEVICE void cluster_wait() { while (of_cluster.turn == self->cluster_turn) yield(); }

// A barrier's eight bytes: how many phases have ended. Copies arrive in `deliver`, every third round.
DEVICE void make_barriers(u32 address, int count) { memset(own_at(address), 0, 8 * count); }
struct Copy { bool expected; u32 target; const void* source; int bytes; u32 barrier; u32 sent[4]; };
static std::vector<Copy> copies;
static std::map<u32, std::pair<int, int>> phases;  // bytes that are still to come, and whether some are expected
static u32 chance = 1;
DEVICE void expect(u32 barrier, int bytes) { copies.push_back({true, 0, nullptr, bytes, barrier, {}}); }
DEVICE void fetch(u32 target, const void* source, int bytes, u32 barrier) {
    if (target % 16 || (uintptr_t)source % 16 || bytes % 16 || bytes < 16) abort();
    expect(barrier, bytes);
    memset(own_at(target), 0xff, bytes);  // NaN until it is there
    copies.push_back({false, target, source, bytes, barrier, {}});
}
// Some values come at once, others late.
template <typename V> void send_any(u32 address, V v, u32 barrier) {
    if (address % sizeof v || address >> 20 != barrier >> 20) abort();
    Copy one{false, address, nullptr, (int)sizeof v, barrier, {}};
    memcpy(one.sent, &v, sizeof v);
    if ((chance = chance * 1664525 + 1013904223) >> 31) memcpy(shared_at(address), &v, sizeof v);
    copies.push_back(one);
}
DEVICE void send(u32 address, uint4 v, u32 barrier) { send_any(address, v, barrier); }
DEVICE void send(u32 address, uint2 v, u32 barrier) { send_any(address, v, barrier); }
static void deliver() {
    for (auto& one : copies) {
        auto& [open, expected] = phases[one.barrier];
        if (!one.expected) memcpy(shared_at(one.target), one.source ? one.source : one.sent, one.bytes);
        open += one.expected ? one.bytes : -one.bytes;
        expected |= one.expected;
        if (open || !expected) continue;
        expected = 0;
        u64 ended;
        memcpy(&ended, shared_at(one.barrier), 8);
        ++ended;
        memcpy(shared_at(one.barrier), &ended, 8);
    }
    copies.clear();
}
DEVICE void wait_for(u32 barrier, int parity) {
    for (;;) {
        u64 ended;
        memcpy(&ended, own_at(barrier), 8);
        if ((int)((ended + 1) & 1) == parity) return;  // the phase before the current one has this parity
        yield();
    }
}
DEVICE void wait_for_copies(u32 barrier, int parity) { wait_for(barrier, parity); }

// Tiles of matrices, and products of groups of four warps.
constexpr int LINE = 128;
struct TensorMap { const u16* values; int lines, columns; };
static const u16 no_values[8] = {};
static u32 unit_of(u32 tile, int line, int unit) { return tile + line * LINE + ((unit ^ (line & 7)) << 4); }
DEVICE void fetch_tile(u32 target, const TensorMap& matrix, int column, int line, u32 barrier) {
    if (target % 1024 || column % 8) abort();
    memset(own_at(target), 0xff, 64 * LINE);  // NaN until it is there
    for (int n = 0; n < 64; ++n)
        for (int u = 0; u < 8; ++u) {
            const bool inside = line + n < matrix.lines && column + u * 8 < matrix.columns;
            const u16* from = inside ? matrix.values + (u64)(line + n) * matrix.columns + column + u * 8 : no_values;
            copies.push_back({false, unit_of(target, n, u), from, 16, barrier, {}});
        }
}
static float value_at(u32 tile, int line, int column) {
    u16 value;
    memcpy(&value, own_at(unit_of(tile, line, column / 8)) + column % 8 * 2, 2);
    return from16(value);
}
DEVICE void begin_products() {}
DEVICE void end_products() {}
template <int unfinished> DEVICE void wait_for_products() { yield(); }
DEVICE void settle(float (&)[32]) {}
DEVICE void publish() {}
template <typename F> static void add_products(float (&sum)[32], bool add, const F& factors) {
    const int lane = self->thread & 31, row = (self->thread >> 5 & 3) * 16 + (lane >> 2);
    for (int i = 0; i < 32; ++i) sum[i] = factors(row + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * (lane & 3) + (i & 1), add ? sum[i] : 0);
}
DEVICE void multiply_lines(float (&sum)[32], u32 left, u32 right, bool add) {
    const u32 a = left * 16 & ~1023u, b = right * 16 & ~1023u;
    const int first = left * 16 % LINE / 2;
    if (first != (int)(right * 16 % LINE / 2)) abort();
    add_products(sum, add, [=](int row, int column, float total) {
        for (int k = first; k < first + 16; ++k) total += value_at(a, row, k) * value_at(b, column, k);
        return total;
    });
}
DEVICE void multiply_columns(float (&sum)[32], const u32 (&a)[4], u32 right) {
    Warp& w = own_warp();
    memcpy(w.in[self->thread & 31], a, 16);
    pass(w.gate);
    const u32 tile = right * 16 & ~8191u;
    const int first = (right * 16 - tile) / LINE;
    add_products(sum, true, [&](int row, int column, float total) {
        for (int k = 0; k < 16; ++k) {
            float pair[2];
            unpacked(w.in[(row & 7) * 4 + (k & 7) / 2][(row >> 3 & 1) + (k >> 3) * 2], pair[0], pair[1]);
            total += pair[k & 1] * value_at(tile, first + k, column);
        }
        return total;
    });
    pass(w.gate);
}
DEVICE float quotient(float a, float b) { return a / b; }
DEVICE float exp2_of(float x) { return std::exp2(x); }
DEVICE float rsqrtf(float x) { return 1 / std::sqrt(x); }
DEVICE float other_lane(float x, int mask) {
    Warp& w = own_warp();
    int lane = self->thread & 31;
    memcpy(&w.in[lane][0], &x, 4);
    pass(w.gate, [&w] { for (int l = 0; l < 32; ++l) w.out[l][0] = w.in[l][0]; });
    float y;
    memcpy(&y, &w.out[lane ^ mask][0], 4);
    pass(w.gate);
    return y;
}
DEVICE bool any_lane(bool x) {
    float most = x;
    for (int mask = 16; mask; mask >>= 1) most = max(most, other_lane(most, mask));
    return most != 0;
}
DEVICE u32 __byte_perm(u32 a, u32 b, u32 order) {
    u64 all = a | (u64)b << 32;
    u32 r = 0;
    for (int i = 0; i < 4; ++i) r |= (u32)(all >> ((order >> 4 * i & 7) * 8) & 0xff) << 8 * i;
    return r;
}

DEVICE u32 add_shared(u32 address, u32 more) { u32 before; memcpy(&before, own_at(address), 4); more += before; memcpy(own_at(address), &more, 4); return before; }
DEVICE void __syncwarp() { pass(own_warp().gate); }

static void enter() {
    body();
    self->done = true;
    --left;
    _longjmp(home, 1);
}
static void resume(Fiber& one) {
    self = &one;
    if (_setjmp(home)) return;
    if (one.begun) _longjmp(one.place, 1);
    one.begun = true;
    swapcontext(&first_home, &one.context);
}
// Runs all clusters, one after another. 0, or 1 if all threads wait for one another.
static int run(int clusters, int programs, int threads, std::function<void()> kernel) {
    body = std::move(kernel);
    for (int cluster = 0; cluster < clusters; ++cluster) {
        first_block = cluster * programs;
        of_cluster = Gate{programs * threads};
        blocks.assign(programs, Gate{threads});
        warps.assign(programs * threads / 32, Warp{});
        memories.assign(programs, std::vector<char>(MEMORY, (char)0xff));
        copies.clear();
        phases.clear();
        fibers = std::vector<Fiber>(programs * threads);
        left = programs * threads;
        for (int i = 0; i < programs * threads; ++i) {
            Fiber& one = fibers[i];
            one.program = i / threads, one.thread = i % threads;
            one.stack.reset(new char[1 << 16]);
            getcontext(&one.context);
            one.context.uc_stack.ss_sp = one.stack.get();
            one.context.uc_stack.ss_size = 1 << 16;
            makecontext(&one.context, enter, 0);
        }
        int rounds = 0;
        while (left) {
            for (auto& one : fibers)
                if (!one.done) resume(one);
            if (++rounds % 3 == 0) deliver();
            if (rounds > 2000000) return 1;
        }
    }
    return 0;
}
