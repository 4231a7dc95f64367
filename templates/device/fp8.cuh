// fp8 (e4m3): stored as __nv_fp8_e4m3, computed in fp32; one rounding, to nearest even, when a result is stored. What lies
// beyond 448, infinities too, becomes 448.
#include <cuda_fp8.h>

__device__ __forceinline__ float to_float(__nv_fp8_e4m3 v) { return static_cast<float>(v); }

template <>
__device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float v) {
    __nv_fp8_e4m3 rounded;
    rounded.__x = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
    return rounded;
}
