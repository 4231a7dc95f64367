// Barriers of some of a block's threads: number 1 to 15 (0 is __syncthreads), `count` threads in all, whole warps.

__device__ __forceinline__ void bar_sync(unsigned number, unsigned count) {
#ifdef CONVGEN_SIM
    convgen_sim_bar_sync(number, count);
#else
    asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(count) : "memory");
#endif
}

// Counted among the threads, but does not wait: what it did before is seen by those that do.
__device__ __forceinline__ void bar_arrive(unsigned number, unsigned count) {
#ifdef CONVGEN_SIM
    convgen_sim_bar_arrive(number, count);
#else
    asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(count) : "memory");
#endif
}
