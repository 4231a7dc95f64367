// fp16: stored as __half, computed in fp32; one rounding, to nearest even, when a result is stored.
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }

template <>
__device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
