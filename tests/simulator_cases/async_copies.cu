// A ring of three stages that cp.async fills, behind the device headers cp_async and shared: 64 threads add up the rows
// of x[steps][64], each the element of its neighbour, so that copies cross from thread to thread.
constexpr int kStages = 3;

struct Ring {
    const float* x;
    float* tile;
    int steps;

    __device__ void fill(int step) const {
        const int thread = threadIdx.x;
        if (step < steps) cp_async<4>(tile + step % kStages * 64 + thread, x + step * 64 + thread);  // FILL
        cp_async_commit_group();
    }
    __device__ float neighbour(int step) const {
        return tile[step % kStages * 64 + (threadIdx.x + 1) % 64];  // READ
    }
};

#define RING()                                                        \
    CONVGEN_SHARED(smem);                                             \
    const Ring ring{x, reinterpret_cast<float*>(smem), steps};        \
    float sum = 0.0f;                                                 \
    ring.fill(0);                                                     \
    ring.fill(1);

extern "C" __global__ void right(const float* x, float* y, int steps) {
    RING();
    for (int step = 0; step < steps; ++step) {
        cp_async_wait_group<1>();
        __syncthreads();
        sum += ring.neighbour(step);
        ring.fill(step + 2);
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void no_wait(const float* x, float* y, int steps) {
    RING();
    for (int step = 0; step < steps; ++step) {
        __syncthreads();
        sum += ring.neighbour(step);
        ring.fill(step + 2);
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void waits_for_too_few(const float* x, float* y, int steps) {
    RING();
    for (int step = 0; step < steps; ++step) {
        cp_async_wait_group<2>();
        __syncthreads();
        sum += ring.neighbour(step);
        ring.fill(step + 2);
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void no_barrier(const float* x, float* y, int steps) {
    RING();
    for (int step = 0; step < steps; ++step) {
        __syncthreads();
        cp_async_wait_group<1>();
        sum += ring.neighbour(step);
        __syncthreads();
        ring.fill(step + 2);
    }
    y[threadIdx.x] = sum;
}

// The ring has no stage to spare: that of step + 3 is still being read.
extern "C" __global__ void reused_too_early(const float* x, float* y, int steps) {
    RING();
    ring.fill(2);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait_group<2>();
        __syncthreads();
        sum += ring.neighbour(step);
        ring.fill(step + 3);
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void odd_source(const float* x, float* y, int steps) {
    CONVGEN_SHARED(smem);
    float* const tile = reinterpret_cast<float*>(smem);
    cp_async<16>(tile + 4 * threadIdx.x, x + threadIdx.x);  // MARK misaligned
    cp_async_commit_group();
    cp_async_wait_group<0>();
    y[threadIdx.x] = tile[4 * threadIdx.x];
}

// Four floats a thread of which the first `thread % 5` come from x; where none does, from nowhere.
extern "C" __global__ void filled_up(const float* x, float* y, int steps) {
    CONVGEN_SHARED(smem);
    float* const tile = reinterpret_cast<float*>(smem);
    const int valid = threadIdx.x % 5;
    const float* const source = x + 4 * threadIdx.x;
    cp_async<16>(tile + 4 * threadIdx.x, valid ? source : x - (1 << 28), 4 * valid);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = tile[4 * threadIdx.x + i];
}
