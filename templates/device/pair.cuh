// Two numbers rounded to fp16 or bf16 in one register, the first in its lower half: neighbours as device/mma.cuh has them.
template <MmaType kType, typename T>
__device__ __forceinline__ unsigned to_pair(float first, float second) {
    static_assert(kType == kMmaFp16 || kType == kMmaBf16, "a pair is of 16-bit numbers");
    unsigned pair;
#ifdef CONVGEN_SIM
    const T halves[2] = {from_float<T>(first), from_float<T>(second)};
    __builtin_memcpy(&pair, halves, 4);
#elif __CUDA_ARCH__ >= 800
    if constexpr (kType == kMmaFp16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    if constexpr (kType == kMmaBf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
    asm("{.reg .f16 lower, upper;\n"
        "cvt.rn.f16.f32 lower, %1;\n"
        "cvt.rn.f16.f32 upper, %2;\n"
        "mov.b32 %0, {lower, upper};}" : "=r"(pair) : "f"(first), "f"(second));
#endif
    return pair;
}
