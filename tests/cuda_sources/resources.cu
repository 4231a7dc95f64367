// Kernels that use a GPU in known ways; what each uses is asserted in test_compiler.py and test_resources.py.
#include <cuda_fp16.h>

__constant__ float taps[25];

extern "C" __global__ void plain_half(const __half* x, __half* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hadd(x[i], __float2half(taps[i % 25]));
}

extern "C" __global__ void static_shared(float* y) {
    __shared__ float tile[256];
    extern __shared__ float dynamic[];
    tile[threadIdx.x] = y[threadIdx.x];
    dynamic[threadIdx.x] = y[threadIdx.x] + 1;
    __syncthreads();
    y[threadIdx.x] = tile[255 - threadIdx.x] + dynamic[3];
}

extern "C" __global__ void indexed_array(const float* x, const int* where, float* y, int n) {
    float sums[24];
    for (int i = 0; i < 24; ++i) sums[i] = x[i];
    for (int i = 0; i < n; ++i)
        sums[where[i]] += x[i];  // line 24: the index is known at run time only
    for (int i = 0; i < n; ++i) y[i] = sums[where[n - i]];
}

// 96 values a thread are alive at the barrier; the bounds leave 32 registers on GPUs with 2048 threads an SM.
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(const float* x, float* y, int n) {
    float values[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) values[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int r = 0; r < n; ++r) {
#pragma unroll
        for (int i = 0; i < 96; ++i) values[i] = values[i] * values[(i * 7 + 1) % 96] + x[r];
    }
#pragma unroll
    for (int i = 0; i < 96; ++i) y[i * 1024 + threadIdx.x] = values[i];
}

extern "C" __global__ void unbounded(const float* x, float* y, int n) {
    float values[300];
#pragma unroll
    for (int i = 0; i < 300; ++i) values[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int r = 0; r < n; ++r) {
#pragma unroll
        for (int i = 0; i < 300; ++i) values[i] = values[i] * values[(i * 7 + 1) % 300] + x[r];
    }
#pragma unroll
    for (int i = 0; i < 300; ++i) y[i * 1024 + threadIdx.x] = values[i];
}
