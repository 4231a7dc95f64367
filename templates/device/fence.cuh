// Fences (sm_90) that order what the ordinary way to memory (the generic proxy) does before the asynchronous units.

// Makes the thread's mbarrier_init visible to the units that copy.
__device__ __forceinline__ void fence_mbarrier_init() {
#ifdef CONVGEN_SIM
    convgen_sim_fence_mbarrier_init();
#else
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// What the thread has written to shared memory, and what it knows others have, is seen by TMA and wgmma from then on.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef CONVGEN_SIM
    convgen_sim_fence_proxy_async();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
