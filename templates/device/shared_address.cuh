// An address within shared memory as PTX takes it.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
#ifdef CONVGEN_SIM
    return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - static_cast<const unsigned char*>(convgen_sim_shared()));
#else
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
#endif
}
