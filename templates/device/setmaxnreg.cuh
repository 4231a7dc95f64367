// How many registers the threads of a warpgroup have (sm_90a): a producer of tiles needs few, a consumer many.
//
// All 128 threads call. A kernel starts with as many for every thread as its __launch_bounds__ leave (168 of 384 threads);
// what one warpgroup gives back another may take, and waits for. 24 to 256, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24 to 256, a multiple of 8");
#ifdef CONVGEN_SIM
    convgen_sim_setmaxnreg(kRegisters);
#else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kRegisters));
#endif
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24 to 256, a multiple of 8");
#ifdef CONVGEN_SIM
    convgen_sim_setmaxnreg(-kRegisters);
#else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kRegisters));
#endif
}
