// Tensor cores: d += a * b on tiles held in a warp's registers (mma.sync). All 32 lanes call it together.
//
// d is 16 x 8, a 16 x k, b k x 8, where k elements are 256 bits: 16 of fp16 or bf16, 8 of TF32, 32 of int8. A register of
// a or b holds e neighbours along k (2, 1, 4), the first in the lowest bits. Lane l holds, with s = l / 4 and t = l % 4,
//     a[i], element j   row s + 8 * (i % 2),      k (4 * (i / 2) + t) * e + j
//     b[i], element j   k (4 * i + t) * e + j,    column s
//     d[i]              row s + 8 * (i / 2),      column 2 * t + i % 2
// d is fp32, or int32 of int8. Before sm_80 there are fp16 and int8, in several smaller steps.
enum MmaType { kMmaFp16, kMmaBf16, kMmaTf32, kMmaInt8, kMmaUint8 };  // kMmaUint8: a is unsigned, b signed

#ifndef CONVGEN_SIM
#define CONVGEN_MMA(shape_and_types)                                                                            \
    asm volatile("mma.sync.aligned." shape_and_types " { %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};" \
                 : CONVGEN_MMA_D(d)                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

template <MmaType kType>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kType == kMmaFp16 || kType == kMmaBf16 || kType == kMmaTf32, "int8 accumulates in int");
#ifdef CONVGEN_SIM
    convgen_sim_mma(kType, d, a, b);
#elif __CUDA_ARCH__ >= 800
#define CONVGEN_MMA_D(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    if constexpr (kType == kMmaFp16) CONVGEN_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    if constexpr (kType == kMmaBf16) CONVGEN_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    if constexpr (kType == kMmaTf32) CONVGEN_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
#undef CONVGEN_MMA_D
#else
    static_assert(kType == kMmaFp16, "bf16 and TF32 tensor cores came with sm_80");
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 { %0, %1, %2, %3}, { %4, %5}, { %6}, { %0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
    }
#endif
}

template <MmaType kType>
__device__ __forceinline__ void mma(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kType == kMmaInt8 || kType == kMmaUint8, "floating point accumulates in float");
#ifdef CONVGEN_SIM
    convgen_sim_mma(kType, d, a, b);
#elif __CUDA_ARCH__ >= 800
#define CONVGEN_MMA_D(d) "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
    if constexpr (kType == kMmaInt8) CONVGEN_MMA("m16n8k32.row.col.s32.s8.s8.s32");
    if constexpr (kType == kMmaUint8) CONVGEN_MMA("m16n8k32.row.col.s32.u8.s8.s32");
#undef CONVGEN_MMA_D
#else
    #pragma unroll
    for (int i = 0; i < 4; ++i) {  // a[i]: 8 rows, half of k
        int* const rows = &d[i % 2 * 2];
        if constexpr (kType == kMmaInt8)
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 { %0, %1}, { %2}, { %3}, { %0, %1};"
                         : "+r"(rows[0]), "+r"(rows[1]) : "r"(a[i]), "r"(b[i / 2]));
        else
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 { %0, %1}, { %2}, { %3}, { %0, %1};"
                         : "+r"(rows[0]), "+r"(rows[1]) : "r"(a[i]), "r"(b[i / 2]));
    }
#endif
}
#undef CONVGEN_MMA

// The nearest TF32 number (ties away from zero), as an operand.
__device__ __forceinline__ unsigned to_tf32(float value) {
#ifdef CONVGEN_SIM
    return value != value ? 0x7fffffffu : (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
#elif __CUDA_ARCH__ >= 800
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
#endif
}
