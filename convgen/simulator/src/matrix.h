// Instructions of a whole warp: the tensor cores' mma.sync, ldmatrix and stmatrix. The last lane to come does the work of all.
//
// Fragments are laid out as templates/device/mma.cuh, ldmatrix.cuh and stmatrix.cuh tell.
#pragma once

#include <string.h>

#include "../include/convgen_sim_half.h"
#include "faults.h"
#include "worker.h"

enum MmaType { kMmaFp16, kMmaBf16, kMmaTf32, kMmaInt8, kMmaUint8 };

struct MmaOperands {
    void* d;
    const unsigned *a, *b;
};

struct MatrixRow {
    unsigned* registers;
    const void* row;
    int matrices, transposed;
};

constexpr int kMmaM = 16, kMmaN = 8, kMmaMaxK = 32;
constexpr int kExtraBits = 2;  // beyond fp32's, that a tensor core of sm_90 keeps of each product
constexpr int kFp8Bits = 13;   // what it keeps in all of products of fp8 (DeepSeek-V3 report, 2024; SageAttention2)

// Element j of a register: exact in double. Of TF32 the hardware ignores the bits that fp32 has more.
static double mma_element(MmaType type, unsigned bits, int j, bool is_a) {
    switch (type) {
        case kMmaFp16: return convgen_sim_half_to_float(static_cast<uint16_t>(bits >> 16 * j));
        case kMmaBf16: return __builtin_bit_cast(float, bits >> 16 * j << 16);
        case kMmaTf32: return __builtin_bit_cast(float, bits & 0xffffe000u);
        case kMmaUint8:
            if (is_a) return static_cast<uint8_t>(bits >> 8 * j);
            [[fallthrough]];
        default: return static_cast<int8_t>(bits >> 8 * j);
    }
}

static float cut_to_float(double value) {
    const float nearest = static_cast<float>(value);
    if (__builtin_fabs(nearest) <= __builtin_fabs(value) || nearest - nearest != 0) return nearest;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, nearest) - 1);
}

// A row of d += a * b. Products are exact; they and the accumulator are cut to a common unit, that of the largest of them
// with so many bits, kExtraBits more than fp32 has unless of fp8, then added, and the sum is cut to fp32: Fasi, Higham, Mikaitis, Pranesh, "Numerical
// behavior of NVIDIA tensor cores", 2021.
template <int kBits = 23 + kExtraBits>
static void mma_row(float* d, const double* a, const double (*b)[kMmaN], int k) {
    double product[kMmaMaxK + 1][kMmaN], largest[kMmaN], plain[kMmaN];
    for (int n = 0; n < kMmaN; ++n) {
        product[k][n] = plain[n] = d[n];
        largest[n] = __builtin_fabs(d[n]);
    }
    for (int i = 0; i < k; ++i) {
        for (int n = 0; n < kMmaN; ++n) {
            product[i][n] = a[i] * b[i][n];
            plain[n] += product[i][n];
            const double magnitude = __builtin_fabs(product[i][n]);
            largest[n] = largest[n] > magnitude ? largest[n] : magnitude;
        }
    }
    double scale[kMmaN];
    int32_t sum[kMmaN] = {};
    bool finite[kMmaN];
    for (int n = 0; n < kMmaN; ++n) {
        finite[n] = plain[n] - plain[n] == 0;
        // 2^(kBits - exponent of the largest); a sum of nothing but zeros needs none.
        const uint64_t exponent = __builtin_bit_cast(uint64_t, largest[n]) >> 52;
        scale[n] = finite[n] && exponent ? __builtin_bit_cast(double, (2046 + static_cast<uint64_t>(kBits) - exponent) << 52) : 0.0;
    }
    for (int i = 0; i <= k; ++i)
        for (int n = 0; n < kMmaN; ++n) sum[n] += static_cast<int32_t>(finite[n] ? product[i][n] * scale[n] : 0.0);
    for (int n = 0; n < kMmaN; ++n)
        d[n] = !finite[n] ? static_cast<float>(plain[n]) : scale[n] ? cut_to_float(sum[n] / scale[n]) : 0.0f;
}

template <int kBits = 0>
static void mma_row(int32_t* d, const double* a, const double (*b)[kMmaN], int k) {
    for (int i = 0; i < k; ++i)
        for (int n = 0; n < kMmaN; ++n)
            d[n] = static_cast<int32_t>(static_cast<uint32_t>(d[n]) + static_cast<uint32_t>(static_cast<int32_t>(a[i] * b[i][n])));
}

template <typename Sum>
static void mma_tile(const Thread* lanes, uint32_t present, int k, const double (*a)[kMmaMaxK], const double (*b)[kMmaN]) {
    Sum d[kMmaM][kMmaN] = {};
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        const Sum* held = static_cast<const Sum*>(reinterpret_cast<const MmaOperands*>(lanes[lane].value)->d);
        for (uint32_t i = 0; i < 4; ++i) d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = held[i];
    }
    for (int m = 0; m < kMmaM; ++m) mma_row(d[m], a[m], b, k);
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        Sum* held = static_cast<Sum*>(reinterpret_cast<const MmaOperands*>(lanes[lane].value)->d);
        for (uint32_t i = 0; i < 4; ++i) held[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    }
}

static void warp_mma(Worker* w, const Thread* lanes, uint32_t present, MmaType type) {
    const uint32_t e = type == kMmaTf32 ? 1 : type >= kMmaInt8 ? 4 : 2;  // elements of a register
    const int k = static_cast<int>(8 * e);
    double a[kMmaM][kMmaMaxK] = {}, b[kMmaMaxK][kMmaN] = {};
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        const MmaOperands* held = reinterpret_cast<const MmaOperands*>(lanes[lane].value);
        for (uint32_t j = 0; j < e; ++j) {
            for (uint32_t i = 0; i < 4; ++i)
                a[lane / 4 + 8 * (i % 2)][(4 * (i / 2) + lane % 4) * e + j] = mma_element(type, held->a[i], j, true);
            for (uint32_t i = 0; i < 2; ++i)
                b[(4 * i + lane % 4) * e + j][lane / 4] = mma_element(type, held->b[i], j, false);
        }
    }
    if (type >= kMmaInt8)
        mma_tile<int32_t>(lanes, present, k, a, b);
    else
        mma_tile<float>(lanes, present, k, a, b);
    w->totals.flops += 2ull * kMmaM * kMmaN * static_cast<uint64_t>(k);
}

static bool in_shared(const Worker* w, uint64_t address, uint64_t bytes) {
    const uint64_t offset = address - reinterpret_cast<uint64_t>(w->shared);
    return offset <= w->launch->shared_bytes && bytes <= w->launch->shared_bytes - offset;
}

static void warp_stmatrix(const Worker* w, const Thread* lanes, uint32_t present) {
    uint16_t element[4][8][8] = {};
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        const MatrixRow* given = reinterpret_cast<const MatrixRow*>(lanes[lane].value);
        const uint32_t i = lane / 4, j = 2 * (lane % 4);
        for (int m = 0; m < given->matrices; ++m) {
            for (uint32_t half = 0; half < 2; ++half)
                (given->transposed ? element[m][j + half][i] : element[m][i][j + half]) =
                    static_cast<uint16_t>(given->registers[m] >> 16 * half);
        }
    }
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        const MatrixRow* given = reinterpret_cast<const MatrixRow*>(lanes[lane].value);
        if (static_cast<int>(lane / 8) < given->matrices && in_shared(w, reinterpret_cast<uint64_t>(given->row), 16))
            memcpy(const_cast<void*>(given->row), element[lane / 8][lane % 8], 16);
    }
}

static void warp_ldmatrix(const Worker* w, const Thread* lanes, uint32_t present) {
    uint16_t element[4][8][8] = {};
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        const MatrixRow* given = reinterpret_cast<const MatrixRow*>(lanes[lane].value);
        if (static_cast<int>(lane / 8) < given->matrices && in_shared(w, reinterpret_cast<uint64_t>(given->row), 16))
            memcpy(element[lane / 8][lane % 8], given->row, 16);
    }
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        const MatrixRow* given = reinterpret_cast<const MatrixRow*>(lanes[lane].value);
        const uint32_t i = lane / 4, j = 2 * (lane % 4);
        for (int m = 0; m < given->matrices; ++m) {
            const uint16_t(*of)[8] = element[m];
            given->registers[m] = given->transposed ? of[j][i] | static_cast<uint32_t>(of[j + 1][i]) << 16
                                                    : of[i][j] | static_cast<uint32_t>(of[i][j + 1]) << 16;
        }
    }
}
