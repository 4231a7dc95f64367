// Twin of CUDA's cuda_bf16.h: storage and conversions; arithmetic is done in fp32.
#pragma once

struct __align__(2) __nv_bfloat16 {
    unsigned short bits;
};
struct __align__(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }

// To nearest, ties to even. A NaN becomes CUDA's canonical one, 0x7fff.
static inline __nv_bfloat16 __float2bfloat16_rn(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return __nv_bfloat16{0x7fff};
    const unsigned odd = (bits >> 16) & 1u;
    return __nv_bfloat16{static_cast<unsigned short>((bits + 0x7fffu + odd) >> 16)};
}

static inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return float2{__bfloat162float(v.x), __bfloat162float(v.y)};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16{v}; }
