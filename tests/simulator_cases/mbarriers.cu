// mbarriers behind the device headers shared, shared_address, mbarrier, fence and cp_async. All kernels run on 64 threads:
// warp 0 brings rows of x[steps][32] into a ring of two stages, warp 1 adds them up.
constexpr int kStages = 2;

#define RING()                                                                                  \
    CONVGEN_SHARED(smem);                                                                       \
    float* const tile = reinterpret_cast<float*>(smem);                                         \
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 256);         \
    unsigned long long* const empty = full + kStages;                                           \
    const int lane = threadIdx.x % 32;                                                          \
    const bool is_producer = threadIdx.x < 32;

#define BEGIN()                                                                                 \
    if (threadIdx.x == 0) {                                                                     \
        for (int stage = 0; stage < kStages; ++stage) {                                         \
            mbarrier_init(full + stage, 32);                                                    \
            mbarrier_init(empty + stage, 1);                                                    \
        }                                                                                       \
        fence_mbarrier_init();                                                                  \
    }                                                                                           \
    __syncthreads();

__device__ void produce(const float* x, float* tile, unsigned long long* full, unsigned long long* empty, int steps) {
    const int lane = threadIdx.x % 32;
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait_parity(empty + step % kStages, (step / kStages & 1) ^ 1);
        tile[step % kStages * 32 + lane] = x[step * 32 + lane];  // FILL
        mbarrier_arrive(full + step % kStages);
    }
}

extern "C" __global__ void right(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) return produce(x, tile, full, empty, steps);
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait_parity(full + step % kStages, step / kStages & 1);
        sum += tile[step % kStages * 32 + 31 - lane];
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + step % kStages);
    }
    y[lane] = sum;
}

// The lanes beside lane 0 may not have read yet.
extern "C" __global__ void no_syncwarp(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) return produce(x, tile, full, empty, steps);
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait_parity(full + step % kStages, step / kStages & 1);
        sum += tile[step % kStages * 32 + 31 - lane];
        if (lane == 0) mbarrier_arrive(empty + step % kStages);
    }
    y[lane] = sum;
}

extern "C" __global__ void no_wait(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) return produce(x, tile, full, empty, steps);
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        if (step) mbarrier_wait_parity(full + step % kStages, step / kStages & 1);
        sum += tile[step % kStages * 32 + 31 - lane];  // MARK race
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + step % kStages);
    }
    y[lane] = sum;
}

extern "C" __global__ void released_too_early(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) return produce(x, tile, full, empty, steps);
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait_parity(full + step % kStages, step / kStages & 1);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + step % kStages);
        sum += tile[step % kStages * 32 + 31 - lane];
    }
    y[lane] = sum;
}

extern "C" __global__ void wrong_parity(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) {
        for (int step = 0; step < steps; ++step) {
            mbarrier_wait_parity(empty + step % kStages, step / kStages & 1);  // MARK deadlock
            tile[step % kStages * 32 + lane] = x[step * 32 + lane];
            mbarrier_arrive(full + step % kStages);
        }
        return;
    }
    mbarrier_wait_parity(full, 0);
    y[lane] = tile[lane];
}

extern "C" __global__ void expects_bytes_that_nobody_copies(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) {
        if (lane == 0) mbarrier_expect_tx(full, 128);
        mbarrier_arrive(full);
        return;
    }
    mbarrier_wait_parity(full, 0);  // MARK deadlock
    y[lane] = steps;
}

extern "C" __global__ void expects_bytes_and_ends(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(full, 64);  // MARK misuse of an mbarrier
    y[lane] = steps;
}

extern "C" __global__ void not_initialised(const float* x, float* y, int steps) {
    RING();
    if (threadIdx.x == 0) mbarrier_arrive(full);  // MARK misuse of an mbarrier
    y[lane] = steps;
}

extern "C" __global__ void no_barrier_after_init(const float* x, float* y, int steps) {
    RING();
    if (threadIdx.x == 0) mbarrier_init(full, 1);
    if (threadIdx.x == 32) mbarrier_arrive(full);  // MARK misuse of an mbarrier
    y[lane] = steps;
}

extern "C" __global__ void initialised_twice(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (threadIdx.x == 0) mbarrier_init(full, 1);  // MARK misuse of an mbarrier
    y[lane] = steps;
}

extern "C" __global__ void expects_too_much(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (threadIdx.x == 0) mbarrier_expect_tx(full, 1 << 20);  // MARK misuse of an mbarrier
    y[lane] = steps;
}

extern "C" __global__ void arrives_too_often(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(empty, 64);
        mbarrier_arrive(empty);  // MARK misuse of an mbarrier
    }
    y[lane] = steps;
}

extern "C" __global__ void read_as_memory(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    y[lane] = static_cast<float>(full[lane % 2]);  // MARK race
}

// Its memory serves another use, then another mbarrier.
extern "C" __global__ void given_back(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_inval(full);
        *full = 5;
    }
    __syncthreads();
    y[lane] = *full;
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_init(full, 64);
    __syncthreads();
    mbarrier_arrive(full);
    mbarrier_wait_parity(full, 0);
}

// No mbarrier at all: writes and reads `steps` times 64 words.
extern "C" __global__ void plain(const float* x, float* y, int steps) {
    RING();
    for (int step = 0; step < steps; ++step) tile[step * 64 + threadIdx.x] = x[lane];
    y[lane] = tile[(steps - 1) * 64 + threadIdx.x];
}

// As `right`, by cp.async: the copies arrive themselves.
extern "C" __global__ void copies_that_arrive(const float* x, float* y, int steps) {
    RING();
    BEGIN();
    if (is_producer) {
        for (int step = 0; step < steps; ++step) {
            mbarrier_wait_parity(empty + step % kStages, (step / kStages & 1) ^ 1);
            cp_async<4>(tile + step % kStages * 32 + lane, x + step * 32 + lane);
            cp_async_mbarrier_arrive_noinc(full + step % kStages);
        }
        return;
    }
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait_parity(full + step % kStages, step / kStages & 1);
        sum += tile[step % kStages * 32 + 31 - lane];
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + step % kStages);
    }
    y[lane] = sum;
}
