// mbarriers between the blocks of a cluster (sm_90): one arrival at that which lies where `mbarrier` does, in the block of that
// rank.

// What the thread has read may be written again by who waits; what it wrote to other blocks' memory is not to be seen yet.
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned long long* mbarrier, unsigned rank) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_arrive_cluster(mbarrier, rank, false);
#else
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}"
        :: "r"(shared_address(mbarrier)), "r"(rank) : "memory");
#endif
}

// What it wrote is to be seen too: a fence of the whole GPU goes before, which an arrival in a main loop cannot afford.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(unsigned long long* mbarrier, unsigned rank) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_arrive_cluster(mbarrier, rank, true);
#else
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
        "}"
        :: "r"(shared_address(mbarrier)), "r"(rank) : "memory");
#endif
}

// As mbarrier_wait_parity, and what other blocks released with their arrivals is seen.
__device__ __forceinline__ void mbarrier_wait_parity_cluster(unsigned long long* mbarrier, unsigned parity) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_wait(mbarrier, parity);
#else
    unsigned done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(done) : "r"(shared_address(mbarrier)), "r"(parity) : "memory");
    } while (!done);
#endif
}
