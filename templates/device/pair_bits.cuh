// Two neighbours of 16 bits as one register.
template <typename T>
__device__ __forceinline__ unsigned pair_bits(const Pack<T, 2>& pair) {
    static_assert(sizeof(T) == 2, "a register holds two elements of 16 bits");
    unsigned bits;
#ifdef CONVGEN_SIM
    __builtin_memcpy(&bits, &pair, 4);
#else
    memcpy(&bits, &pair, 4);
#endif
    return bits;
}
