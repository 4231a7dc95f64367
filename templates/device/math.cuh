// acc + a * b in one rounding. The simulator counts its two operations.
__device__ __forceinline__ float fma_acc(float a, float b, float acc) {
#ifdef CONVGEN_SIM
    convgen_sim_count_flops(2);
#endif
    return fmaf(a, b, acc);
}
