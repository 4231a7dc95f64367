// Twin of CUDA's cuda_fp8.h: storage and conversions of e4m3; arithmetic is done in fp32.
#pragma once

typedef unsigned char __nv_fp8_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;

    explicit operator float() const {
        const int exponent = __x >> 3 & 15, mantissa = __x & 7;
        if ((__x & 0x7f) == 0x7f) return __uint_as_float(0x7fffffffu);
        const float magnitude = exponent ? __uint_as_float(static_cast<unsigned>(exponent + 120) << 23 | static_cast<unsigned>(mantissa) << 20)
                                         : static_cast<float>(mantissa) * 0x1p-9f;
        return __x & 0x80 ? -magnitude : magnitude;
    }
};

// To nearest, ties to even; what rounds beyond 448 becomes 448 (only __NV_SATFINITE and __NV_E4M3 have a twin).
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t, __nv_fp8_interpretation_t) {
    const unsigned bits = __float_as_uint(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x43e00000u) return static_cast<__nv_fp8_storage_t>(sign | 0x7e);
    if (magnitude < 0x3c800000u) {  // below 2^-6, where the unit is 2^-9: adding 2^14 rounds to it
        const unsigned units = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u;
        return static_cast<__nv_fp8_storage_t>(sign | units);
    }
    const unsigned odd = magnitude >> 20 & 1u;
    return static_cast<__nv_fp8_storage_t>(sign | (((magnitude + 0x7ffffu + odd) >> 20) - (120u << 3)));
}
