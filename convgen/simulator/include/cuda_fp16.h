// Twin of CUDA's cuda_fp16.h: storage and conversions; arithmetic is done in fp32.
#pragma once

#include "convgen_sim_half.h"

struct __align__(2) __half {
    unsigned short bits;
};
struct __align__(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half v) { return convgen_sim_half_to_float(v.bits); }

// To nearest, ties to even. A NaN becomes CUDA's canonical one, 0x7fff.
static inline __half __float2half_rn(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = (bits >> 16) & 0x8000u;
    const unsigned magnitude = bits & 0x7fffffffu;
    unsigned result;
    if (magnitude > 0x7f800000u) return __half{0x7fff};
    if (magnitude >= 0x477ff000u) {
        result = 0x7c00u;  // 65520 and above round to infinity
    } else if (magnitude >= 0x38800000u) {
        const unsigned odd = (magnitude >> 13) & 1u;
        result = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    } else {
        // Adding 0.5 leaves the subnormal's bits at the bottom of the sum, rounded by the addition itself.
        result = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    }
    return __half{static_cast<unsigned short>(sign | result)};
}

static inline __half __float2half(float value) { return __float2half_rn(value); }
static inline __half2 __floats2half2_rn(float x, float y) { return __half2{__float2half_rn(x), __float2half_rn(y)}; }
static inline float2 __half22float2(__half2 v) { return float2{__half2float(v.x), __half2float(v.y)}; }
static inline __half2 __halves2half2(__half x, __half y) { return __half2{x, y}; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline float __low2float(__half2 v) { return __half2float(v.x); }
static inline float __high2float(__half2 v) { return __half2float(v.y); }
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline __half __ushort_as_half(unsigned short v) { return __half{v}; }
