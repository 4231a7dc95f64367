// Every conversion between fp32 and the 16-bit types.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void from_half(const __half* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = __half2float(x[i]);
}

extern "C" __global__ void to_half(const float* x, __half* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = __float2half_rn(x[i]);
}

extern "C" __global__ void from_bfloat16(const __nv_bfloat16* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = __bfloat162float(x[i]);
}

extern "C" __global__ void to_bfloat16(const float* x, __nv_bfloat16* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = __float2bfloat16_rn(x[i]);
}
