// Bulk copies (sm_90) of bytes in a row, a multiple of 16 at addresses that are multiples of 16; and groups of stores.

// Completes on the mbarrier, as a load by TMA.
__device__ __forceinline__ void cp_async_bulk_load(
    void* shared, const void* global, unsigned bytes, unsigned long long* mbarrier
) {
#ifdef CONVGEN_SIM
    convgen_sim_bulk_load(shared, global, bytes, mbarrier);
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(mbarrier)) : "memory");
#endif
}

__device__ __forceinline__ void cp_async_bulk_store(void* global, const void* shared, unsigned bytes) {
#ifdef CONVGEN_SIM
    convgen_sim_bulk_store(global, shared, bytes);
#else
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(global), "r"(shared_address(shared)), "r"(bytes) : "memory");
#endif
}

// The thread's stores since its last commit are a group.
__device__ __forceinline__ void cp_async_bulk_commit_group() {
#ifdef CONVGEN_SIM
    convgen_sim_bulk_commit();
#else
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// All but the thread's kGroups latest groups have read their shared memory, which may then be written again.
template <int kGroups>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
#ifdef CONVGEN_SIM
    convgen_sim_bulk_wait(kGroups);
#else
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(kGroups) : "memory");
#endif
}

// They have also written.
template <int kGroups>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
#ifdef CONVGEN_SIM
    convgen_sim_bulk_wait(kGroups);
#else
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(kGroups) : "memory");
#endif
}
