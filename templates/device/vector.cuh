// Several neighbouring elements as one memory instruction (2 to 16 bytes, naturally aligned).
template <typename T, int kCount>
struct __align__(sizeof(T) * kCount) Pack {
    T lane[kCount];
};

template <int kCount, typename T>
__device__ __forceinline__ Pack<T, kCount> load_pack(const T* address) {
#ifdef CONVGEN_SIM
    convgen_sim_access(address, sizeof(T) * kCount, 0);
#endif
    return *reinterpret_cast<const Pack<T, kCount>*>(address);
}

template <int kCount, typename T>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, kCount>& pack) {
#ifdef CONVGEN_SIM
    convgen_sim_access(address, sizeof(T) * kCount, 1);
#endif
    *reinterpret_cast<Pack<T, kCount>*>(address) = pack;
}
