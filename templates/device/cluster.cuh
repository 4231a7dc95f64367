// Thread block clusters (sm_90): up to 8 blocks that run at the same time and reach each other's shared memory.
//
// The launch says how many, its grid is a multiple of them. Nobody touches another block's memory or mbarriers before a
// cluster_sync, since it may not have started, and no block ends while another may still touch its own: cluster_sync again.

// Of the block in its cluster, x running fastest.
__device__ __forceinline__ unsigned cluster_rank() {
#ifdef CONVGEN_SIM
    return convgen_sim_cluster_rank();
#else
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#endif
}

// Blocks of the cluster; 1 in a launch without clusters.
__device__ __forceinline__ unsigned cluster_size() {
#ifdef CONVGEN_SIM
    return convgen_sim_cluster_size();
#else
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
#endif
}

// Where `shared` lies in the block of that rank: to be read and written as other memory, by 1 to 16 bytes or atomics.
template <typename T>
__device__ __forceinline__ T* cluster_map(T* shared, unsigned rank) {
#ifdef CONVGEN_SIM
    return static_cast<T*>(convgen_sim_cluster_map(shared, rank));
#else
    unsigned long long address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(shared), "r"(rank));
    return reinterpret_cast<T*>(address);
#endif
}

// The barrier of all threads of the cluster. Each arrives once, then waits once; those that have ended are not waited for.
// Who arrives releases what it did, who waits acquires it.
__device__ __forceinline__ void cluster_arrive() {
#ifdef CONVGEN_SIM
    convgen_sim_cluster_arrive();
#else
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#ifdef CONVGEN_SIM
    convgen_sim_cluster_wait();
#else
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
