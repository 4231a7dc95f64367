// Kernels that each break one rule, on a line marked with the rule's name. All take x, y and run on 64 threads.
#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

extern "C" __constant__ float table[64];

struct __align__(16) Pack {
    float lane[4];
};

__device__ __forceinline__ Pack load_pack(const float* address) {
#ifdef CONVGEN_SIM
    convgen_sim_access(address, 16, 0);
#endif
    return *reinterpret_cast<const Pack*>(address);
}

extern "C" __global__ void out_of_bounds(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x + 1];  // MARK out of bounds
}

extern "C" __global__ void write_beyond(const float* x, float* y) {
    y[threadIdx.x * 2] = x[threadIdx.x];  // MARK out of bounds
}

extern "C" __global__ void far_out_of_bounds(const float* x, float* y) {
    y[threadIdx.x] = x[(threadIdx.x + 1) * 4000000000LL];  // MARK out of bounds
}

extern "C" __global__ void shared_out_of_bounds(const float* x, float* y) {
    CONVGEN_SHARED(smem);
    float* tile = reinterpret_cast<float*>(smem);
    tile[threadIdx.x + 1] = x[threadIdx.x];  // MARK out of bounds
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x == 0 ? 1 : threadIdx.x];
}

extern "C" __global__ void constant_out_of_bounds(const float* x, float* y) {
    y[threadIdx.x] = table[threadIdx.x + 1];  // MARK out of bounds
}

extern "C" __global__ void missing_barrier(const float* x, float* y) {
    CONVGEN_SHARED(smem);
    float* tile = reinterpret_cast<float*>(smem);
    tile[threadIdx.x] = 0.0f;
    __syncthreads();
    tile[threadIdx.x] = x[threadIdx.x];  // MARK race
    y[threadIdx.x] = tile[threadIdx.x ^ 1];
}

extern "C" __global__ void same_cell(const float* x, float* y) {
    CONVGEN_SHARED(smem);
    float* tile = reinterpret_cast<float*>(smem);
    tile[threadIdx.x / 2] = x[threadIdx.x];  // MARK race
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x / 2];
}

extern "C" __global__ void same_output(const float* x, float* y) {
    y[threadIdx.x / 2] = x[threadIdx.x];  // MARK race
}

extern "C" __global__ void exited_barrier(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x >= 60) return;
    __syncthreads();  // MARK divergent barrier
}

extern "C" __global__ void two_barriers(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 32) {
        __syncthreads();  // MARK divergent barrier
    } else {
        __syncthreads();
    }
}

extern "C" __global__ void never_written(const float* x, float* y) {
    CONVGEN_SHARED(smem);
    float* tile = reinterpret_cast<float*>(smem);
    if (threadIdx.x != 7) tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];  // MARK uninitialised read
}

extern "C" __global__ void output_read(const float* x, float* y) {
    y[threadIdx.x] += x[threadIdx.x];  // MARK uninitialised read
}

extern "C" __global__ void misaligned(const float* x, float* y) {
    const Pack pack = load_pack(x + threadIdx.x % 8);  // MARK misaligned
    y[threadIdx.x] = pack.lane[0] + pack.lane[3];
}

extern "C" __global__ void input_written(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    const_cast<float*>(x)[threadIdx.x] = 0.0f;  // MARK write to read-only memory
}

extern "C" __global__ void absent_lanes(const float* x, float* y) {
    float value = x[threadIdx.x];
    if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(0xffffffffu, value, 1);  // MARK deadlock
    __syncthreads();
    y[threadIdx.x] = value;
}

extern "C" __global__ void trapped(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 5) __trap();  // MARK trap
}

extern "C" __global__ void deep_stack(const float* x, float* y) {
    volatile float local[16384];
    for (int i = 0; i < 16384; ++i) local[i] = x[i % 64];
    y[threadIdx.x] = local[threadIdx.x];
}

extern "C" __global__ void null_pointer(const float* x, float* y) {
    const volatile float* nowhere = x - (reinterpret_cast<unsigned long long>(x) / 4 - threadIdx.x);
    y[threadIdx.x] = *nowhere;  // MARK crash
}

extern "C" __global__ void atomic_beyond(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 63) atomicAdd(&y[threadIdx.x + 1], 1.0f);  // MARK out of bounds
}
