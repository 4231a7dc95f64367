// bf16: stored as __nv_bfloat16, computed in fp32; one rounding, to nearest even, when a result is stored.
#include <cuda_bf16.h>

__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
