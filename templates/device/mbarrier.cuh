// mbarriers (sm_90): 8 bytes of shared memory, 8-byte aligned, that count arrivals and the bytes of asynchronous copies.
//
// A phase ends when `count` arrivals have come and all bytes that it was told to expect have been copied; then the next
// begins. Phases have parity 0, 1, 0, …: a wait for a parity returns when the phase of that parity is not the current
// one, so on a new mbarrier a wait for parity 1 returns at once. Who arrives releases what it did (its copies aside), who
// waits acquires it. After the initialisation: fence_mbarrier_init, then a barrier of the block.
__device__ __forceinline__ void mbarrier_init(unsigned long long* mbarrier, unsigned count) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_init(mbarrier, count);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(mbarrier)), "r"(count) : "memory");
#endif
}

// Its memory is free for other use.
__device__ __forceinline__ void mbarrier_inval(unsigned long long* mbarrier) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_inval(mbarrier);
#else
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(shared_address(mbarrier)) : "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(unsigned long long* mbarrier) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_arrive(mbarrier, 1, 0);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(mbarrier)) : "memory");
#endif
}

// One arrival, after the phase is told to wait for so many bytes more.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned long long* mbarrier, unsigned bytes) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_arrive(mbarrier, 1, bytes);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(mbarrier)), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void mbarrier_expect_tx(unsigned long long* mbarrier, unsigned bytes) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_arrive(mbarrier, 0, bytes);
#else
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(mbarrier)), "r"(bytes) : "memory");
#endif
}

// Waits for a time that the hardware limits; whether the phase has ended.
__device__ __forceinline__ bool mbarrier_try_wait_parity(unsigned long long* mbarrier, unsigned parity) {
#ifdef CONVGEN_SIM
    convgen_sim_mbarrier_wait(mbarrier, parity);
    return true;
#else
    unsigned done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done) : "r"(shared_address(mbarrier)), "r"(parity) : "memory");
    return done;
#endif
}

__device__ __forceinline__ void mbarrier_wait_parity(unsigned long long* mbarrier, unsigned parity) {
    while (!mbarrier_try_wait_parity(mbarrier, parity)) {}
}

// An arrival when all cp.async that the thread has issued have ended; `count` of the mbarrier includes it.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(unsigned long long* mbarrier) {
#ifdef CONVGEN_SIM
    convgen_sim_cp_async_mbarrier_arrive(mbarrier);
#else
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(shared_address(mbarrier)) : "memory");
#endif
}
