// Wrappers of single instructions; no other file contains PTX. The code is compiled at run time, without any header.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define DEVICE __device__ __forceinline__
// resident: programs that a multiprocessor runs at the same time.
#define KERNEL(threads, resident) extern "C" __global__ void __launch_bounds__(threads, resident)
#define CLUSTER(programs) __cluster_dims__(programs, 1, 1)

extern __shared__ __align__(1024) char shared_memory[];

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE u32 packed(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE void unpacked(u32 both, float& low, float& high) {
    asm("{.reg .b16 a, b;\n mov.b32 {a, b}, %2;\n cvt.f32.f16 %0, a;\n cvt.f32.f16 %1, b;}"
        : "=f"(low), "=f"(high)
        : "r"(both));
}

DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads 16 rows of 16 values as the left factor of `multiply`. address: of the first value; width: values from row to row.
DEVICE void load_rows(u32 (&a)[4], u32 address, int width, int lane) {
    u32 at = address + ((lane & 15) * width + (lane >> 4) * 8) * 2;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

DEVICE uint4 load_shared(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

DEVICE void store_shared(u32 address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

DEVICE uint4 load_global(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

DEVICE u32 address_in(u32 address, int program) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(program));
    return there;
}

// Sends values to the memory of any program of the cluster. That program's barrier counts the bytes as they arrive.
DEVICE void send(u32 address, uint4 v, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
                 : "memory");
}

DEVICE void send(u32 address, uint2 v, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address),
                 "r"(v.x), "r"(v.y), "r"(barrier)
                 : "memory");
}

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

DEVICE void make_barriers(u32 address, int count) {
    for (int i = 0; i < count; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address + i * 8) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void fetch_more(u32 target, const void* source, int bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Copies bytes to this program's memory in the background. The barrier's phase ends when all bytes have arrived.
DEVICE void fetch(u32 target, const void* source, int bytes, u32 barrier) {
    expect(barrier, bytes);
    fetch_more(target, source, bytes, barrier);
}

// Waits until the barrier's phase with this parity has ended. The copied values are then visible.
DEVICE void wait_for_copies(u32 barrier, int parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// Does the same as `wait_for_copies`. Values that other programs of the cluster sent are then visible, too.
DEVICE void wait_for(u32 barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

DEVICE float quotient(float a, float b) { return __fdividef(a, b); }

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float other_lane(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

// Adds to a number in this program's memory  →  the number before.
DEVICE u32 add_shared(u32 address, u32 more) {
    u32 before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(more) : "memory");
    return before;
}

DEVICE bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }

// Makes the values that this thread stored visible to the tensor cores, after the next barrier of all threads.
DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

struct __align__(64) TensorMap { u64 words[16]; };  // describes a matrix to `fetch_tile`

// Copies a tile of the matrix. The barrier counts the bytes as they arrive.
DEVICE void fetch_tile(u32 target, const TensorMap& matrix, int column, int line, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     target),
                 "l"(&matrix), "r"(column), "r"(line), "r"(barrier)
                 : "memory");
}

// Products of a group of four warps, with tiles of 64 lines of 64 values. A line's eight units of 16 bytes are permuted:
// unit u of line n has place u ^ (n % 8). The tile's address is a multiple of 1024. Between `begin_products` and the end of
// `wait_for_products` no other code may touch the factors and sums. Warp w has rows 16 w to 16 w + 15, as in `multiply`.

constexpr int LINE = 128;

DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `unfinished` groups of products still run.
template <int unfinished> DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(unfinished) : "memory");
}

// Call it after `wait_for_products`: it keeps the compiler from using earlier values of the sums.
DEVICE void settle(float (&sum)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

// `left` and `right` are addresses of tiles, in units of 16 bytes. The constant 0x40000040 beside an address tells the
// hardware the distance of groups of eight lines (64 · 16 bytes), and that units are permuted.

#define SUMS(sum) \
    "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]), \
    "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), \
    "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), \
    "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])

// Multiplies 64 lines of `left`, 16 values of each, with 64 lines of `right`. Adds to the sums if `add`, else replaces them.
DEVICE void multiply_lines(float (&sum)[32], u32 left, u32 right, bool add) {
    asm volatile(
        "{\n.reg .pred add;\n.reg .b64 left, right;\nsetp.ne.b32 add, %34, 0;\n"
        "mov.b64 left, {%32, 0x40000040};\nmov.b64 right, {%33, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "left, right, add, 1, 1, 0, 0;\n}"
        : SUMS(sum)
        : "r"(left), "r"(right), "r"((int)add));
}

// Multiplies 64 rows of 16 values, which the lanes have like the sums' rows, with 16 lines of `right`. Adds to the sums.
DEVICE void multiply_columns(float (&sum)[32], const u32 (&a)[4], u32 right) {
    asm volatile(
        "{\n.reg .pred add;\n.reg .b64 right;\nsetp.ne.b32 add, 1, 0;\nmov.b64 right, {%36, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, right, add, 1, 1, 1;\n}"
        : SUMS(sum)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(right));
}
