// What orders wgmma (sm_90a). All 128 threads of a warpgroup call each together.
//
//     wgmma_fence();  wgmma…  wgmma…  wgmma_commit_group();  …  wgmma_wait_group<0>(d);
//
// Between a fence and the wait for its group neither accumulators nor operands in registers are touched, and tiles in
// shared memory not written. The fence comes before the first wgmma and again whenever registers were touched.

// Tells the compiler that these registers change here: it moves no use of them across.
template <typename T, int kCount>
__device__ __forceinline__ void hold_registers(T (&registers)[kCount]) {
#ifndef CONVGEN_SIM
    #pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if constexpr (T(0.5f) != T(0))
            asm volatile("" : "+f"(registers[i]) :: "memory");
        else
            asm volatile("" : "+r"(registers[i]) :: "memory");
    }
#endif
}

__device__ __forceinline__ void wgmma_fence() {
#ifdef CONVGEN_SIM
    convgen_sim_wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

template <typename T, int kCount>
__device__ __forceinline__ void wgmma_fence(T (&registers)[kCount]) {
    hold_registers(registers);
    wgmma_fence();
}

// The warpgroup's wgmma since its last commit are a group.
__device__ __forceinline__ void wgmma_commit_group() {
#ifdef CONVGEN_SIM
    convgen_sim_wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// All but the kGroups latest groups have ended.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait_group() {
#ifdef CONVGEN_SIM
    convgen_sim_wgmma_wait(kGroups);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(kGroups) : "memory");
#endif
}

// And these accumulators, of one of them, may be used.
template <int kGroups, typename T, int kCount>
__device__ __forceinline__ void wgmma_wait_group(T (&registers)[kCount]) {
    wgmma_wait_group<kGroups>();
    hold_registers(registers);
}
