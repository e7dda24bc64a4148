// Wrappers of single instructions; no other file contains PTX. Compiled at run time, without any header.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define DEVICE __device__ __forceinline__
#define KERNEL(threads, programs) \
    extern "C" __global__ void __cluster_dims__(programs, 1, 1) __launch_bounds__(threads, 1)

extern __shared__ __align__(128) char shared_memory[];

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

// 16 rows of 16 values as the left factor of a product; address: of the tile's first value.
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

// Sends values to any program's memory; its barrier, at the given address there, counts the bytes as they come.
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

// Copies bytes to this program's memory in the background; the barrier's phase ends when they are there.
DEVICE void fetch(u32 target, const void* source, int bytes, u32 barrier) {
    expect(barrier, bytes);
    fetch_more(target, source, bytes, barrier);
}

// Waits until the barrier's phase with this parity has ended; the bytes that it counted are then visible.
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

// Adds to a number in this program's memory  →  what it was.
DEVICE u32 add_shared(u32 address, u32 more) {
    u32 before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(more) : "memory");
    return before;
}
