// Integers: products and sums in int32, which wrap past 2^31. The simulator counts their two operations.
__device__ __forceinline__ int fma_acc(int a, int b, int acc) {
#ifdef CONVGEN_SIM
    convgen_sim_count_flops(2);
#endif
    return static_cast<int>(static_cast<unsigned>(acc) + static_cast<unsigned>(a * b));
}
