// fp16 bits to fp32, exact.
#pragma once

#include <stdint.h>

static inline float convgen_sim_half_to_float(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude << 13));  // inf, NaN
    if (magnitude >= 0x0400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}
