// Warp operations, votes, barriers with a result and atomics: well-behaved kernels with known answers.
#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

// Sum of 256 values a block: shuffles within warps, shared memory across them.
extern "C" __global__ void block_sum(const float* x, float* y) {
    CONVGEN_SHARED(smem);
    float* partial = reinterpret_cast<float*>(smem);
    float sum = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = threadIdx.x < 8 ? partial[threadIdx.x] : 0.0f;
    for (int lanes = 4; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes, 8);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

// The same through shared memory, ordered by __syncwarp alone.
extern "C" __global__ void warp_sum(const float* x, float* y) {
    CONVGEN_SHARED(smem);
    float* cell = reinterpret_cast<float*>(smem) + threadIdx.x / 32 * 32;
    const int lane = threadIdx.x % 32;
    cell[lane] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncwarp();
    for (int delta = 16; delta > 0; delta /= 2) {
        const float other = lane < delta ? cell[lane + delta] : 0.0f;
        __syncwarp();
        if (lane < delta) cell[lane] += other;
        __syncwarp();
    }
    if (lane == 0) y[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = cell[0];
}

extern "C" __global__ void votes(const int* x, int* y) {
    const int value = x[threadIdx.x];
    int* out = y + threadIdx.x * 12;
    out[0] = static_cast<int>(__ballot_sync(0xffffffffu, value > 0));
    out[1] = __any_sync(0xffffffffu, value > 40);
    out[2] = __all_sync(0xffffffffu, value > -40);
    out[3] = __shfl_sync(0xffffffffu, value, 3);
    out[4] = __shfl_up_sync(0xffffffffu, value, 2);
    out[5] = __shfl_down_sync(0xffffffffu, value, 2, 8);
    out[6] = __shfl_sync(0xffffffffu, value, 9, 8);
    out[7] = static_cast<int>(__match_any_sync(0xffffffffu, value));
    out[8] = __syncthreads_count(value > 0);
    out[9] = __syncthreads_and(value > -40);
    out[10] = __syncthreads_or(value > 100);
    out[11] = 0;
    if (threadIdx.x % 32 < 8) out[11] = __shfl_xor_sync(0x000000ffu, value, 7);
}

extern "C" __global__ void histogram(const int* x, int* y, float* sum, unsigned long long* largest) {
    CONVGEN_SHARED(smem);
    int* bins = reinterpret_cast<int*>(smem);
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    const int value = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(&bins[value], 1);
    atomicAdd(sum, static_cast<float>(value));
    atomicMax(largest, static_cast<unsigned long long>(value) << 40);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&y[threadIdx.x], bins[threadIdx.x]);
}
