// Misuse of wgmma, behind the device headers of wgmmas.cu and cp_async_bulk, of bf16 and 8 columns. 128 threads (256 where
// said); a lies from 0 on, b from 8192, mbarriers from 16384.
#define BEGIN()                                                                                                  \
    CONVGEN_SHARED(smem);                                                                                        \
    unsigned* const words = reinterpret_cast<unsigned*>(smem);                                                   \
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 16384);                        \
    float d[4] = {};                                                                                             \
    const unsigned long long a = wgmma_descriptor<kWgmmaSwizzle128>(smem, 0, 1024);                              \
    const unsigned long long b = wgmma_descriptor<kWgmmaSwizzle128>(smem + 8192, 0, 1024);

#define FILL()                                                                                                   \
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) words[i] = 0x3f803f80u;                                 \
    fence_proxy_async();                                                                                         \
    __syncthreads();

#define END()                                                                                                    \
    for (int i = 0; i < 4; ++i) y[threadIdx.x % 128 * 4 + i] = d[i];

extern "C" __global__ void no_proxy_fence(const float* x, float* y) {
    BEGIN();
    for (int i = threadIdx.x; i < 4096; i += 128) words[i] = 0x3f803f80u;
    __syncthreads();
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);  // MARK missing proxy fence
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

// The fence by who reads, behind the barrier, does as well.
extern "C" __global__ void fence_behind_the_barrier(const float* x, float* y) {
    BEGIN();
    for (int i = threadIdx.x; i < 4096; i += 128) words[i] = 0x3f803f80u;
    __syncthreads();
    fence_proxy_async();
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void no_wgmma_fence(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_mma_async(d, a, b, false);  // MARK illegal wgmma
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void reads_too_early(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);
    wgmma_commit_group();
    y[threadIdx.x * 4] = d[0];  // MARK use of registers in flight
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void waits_for_the_group_before(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);
    wgmma_commit_group();
    wgmma_mma_async(d, a, b, true);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    y[threadIdx.x * 4] = d[0];  // MARK use of registers in flight
    wgmma_wait_group<0>(d);
}

extern "C" __global__ void overwrites_registers(const float* x, float* y) {
    BEGIN();
    unsigned operand[4] = {};
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, operand, b, false);
    wgmma_commit_group();
    operand[1] = threadIdx.x;  // MARK use of registers in flight
    wgmma_wait_group<0>(d);
    y[threadIdx.x] = operand[1] + operand[0];
    END();
}

extern "C" __global__ void overwrites_its_tile(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);
    wgmma_commit_group();
    words[threadIdx.x] = 0;  // MARK race
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void never_waits(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);  // MARK illegal wgmma
    wgmma_commit_group();
    y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void a_base_offset(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, a | 1ull << 49, b, false);  // MARK illegal wgmma
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void warps_differ(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    wgmma_mma_async(d, wgmma_advance(a, threadIdx.x / 32 * 32), b, false);  // MARK illegal wgmma
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void one_warp_leaves(const float* x, float* y) {
    BEGIN();
    FILL();
    if (threadIdx.x >= 96) return;
    wgmma_fence(d);
    wgmma_mma_async(d, a, b, false);  // MARK deadlock
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void two_instructions(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    if (threadIdx.x < 64)
        wgmma_mma_async(d, a, b, false);
    else
        wgmma_mma_async(d, a, b, true);  // MARK divergent
    wgmma_commit_group();
    wgmma_wait_group<0>(d);
    END();
}

extern "C" __global__ void one_warp_waits_elsewhere(const float* x, float* y) {
    BEGIN();
    FILL();
    wgmma_fence(d);
    if (threadIdx.x < 96) wgmma_mma_async(d, a, b, false);  // MARK deadlock
    __syncthreads();
    END();
}

// 256 threads: warpgroup 1 brings b again and again, warpgroup 0 multiplies and lets go of it too early or in time.
__device__ void ring(const float* x, float* y, bool early) {
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init(full + 1, 1);
        fence_mbarrier_init();
    }
    FILL();
    if (threadIdx.x >= 128) {
        for (int step = 0; step < 3 && threadIdx.x == 128; ++step) {
            mbarrier_wait_parity(full + 1, step & 1 ^ 1);
            mbarrier_arrive_expect_tx(full, 1024);
            cp_async_bulk_load(smem + 8192, x + 256 * step, 1024, full);  // REFILL
        }
        return;
    }
    for (int step = 0; step < 3; ++step) {
        mbarrier_wait_parity(full, step & 1);
        wgmma_fence(d);
        wgmma_mma_async(d, a, b, step > 0);
        wgmma_commit_group();
        if (early && threadIdx.x == 0) mbarrier_arrive(full + 1);
        wgmma_wait_group<0>(d);
        if (!early && threadIdx.x == 0) mbarrier_arrive(full + 1);
    }
    END();
}

extern "C" __global__ void released_in_time(const float* x, float* y) { ring(x, y, false); }
extern "C" __global__ void released_too_early(const float* x, float* y) { ring(x, y, true); }
