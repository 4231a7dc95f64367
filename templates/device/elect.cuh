// True for one lane of the warp, all 32 of which call (sm_90): the compiler knows that it is one. Orders no memory.
__device__ __forceinline__ bool elect_sync() {
#ifdef CONVGEN_SIM
    return convgen_sim_warp(kElect, 0xffffffffu, 0, 0, 32, __LINE__);
#else
    unsigned elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected;
#endif
}
