// The larger of two numbers; NaN if one of them is.
__device__ __forceinline__ float maximum(float a, float b) {
#if defined(CONVGEN_SIM) || __CUDA_ARCH__ < 800
    return b > a || b != b ? b : a;
#else
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
#endif
}

// The maximum of nothing: -infinity.
__device__ __forceinline__ float lowest() { return __uint_as_float(0xff800000u); }
