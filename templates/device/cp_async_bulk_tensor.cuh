// TMA (sm_90): copies of a box of a tensor between global and shared memory, by one thread, running by themselves.
//
// The box at coordinates `at` (the innermost first; they may lie outside, where loads bring zeros and stores leave out) is
// packed in shared memory, its innermost row first, at an address that is a multiple of 128, with the map's swizzle: of
// each 16-byte piece's address, bits 4 to 6 (128 bytes), 4 to 5 (64) or 4 (32) are exclusive-ored with bits 7 and up. The
// swizzle follows absolute addresses, wherever the box begins (measured).

// All bytes of the box, also those outside the tensor, count on the mbarrier: mbarrier_expect_tx. Before: readers have
// released the memory, threads that wrote it have fenced (fence_proxy_async).
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    void* shared, const TensorMap* map, const int (&at)[kRank], unsigned long long* mbarrier
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has one to five dimensions");
#ifdef CONVGEN_SIM
    convgen_sim_tensor_load(shared, map, at, kRank, mbarrier);
#else
    const unsigned to = shared_address(shared), barrier = shared_address(mbarrier);
    if constexpr (kRank == 1)
        asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3}], [%2];"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]) : "memory");
    if constexpr (kRank == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4}], [%2];"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]) : "memory");
    if constexpr (kRank == 3)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5}], [%2];"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]) : "memory");
    if constexpr (kRank == 4)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5, %6}], [%2];"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]) : "memory");
    if constexpr (kRank == 5)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5, %6, %7}], [%2];"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]) : "memory");
#endif
}

// What is stored was written, fence_proxy_async called by who wrote it, then a barrier. Afterwards commit and wait for the
// group (cp_async_bulk.cuh).
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap* map, const int (&at)[kRank], const void* shared) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has one to five dimensions");
#ifdef CONVGEN_SIM
    convgen_sim_tensor_store(map, at, kRank, shared);
#else
    const unsigned from = shared_address(shared);
    if constexpr (kRank == 1)
        asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, { %2}], [%1];"
                     :: "l"(map), "r"(from), "r"(at[0]) : "memory");
    if constexpr (kRank == 2)
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, { %2, %3}], [%1];"
                     :: "l"(map), "r"(from), "r"(at[0]), "r"(at[1]) : "memory");
    if constexpr (kRank == 3)
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, { %2, %3, %4}], [%1];"
                     :: "l"(map), "r"(from), "r"(at[0]), "r"(at[1]), "r"(at[2]) : "memory");
    if constexpr (kRank == 4)
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, { %2, %3, %4, %5}], [%1];"
                     :: "l"(map), "r"(from), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]) : "memory");
    if constexpr (kRank == 5)
        asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, { %2, %3, %4, %5, %6}], [%1];"
                     :: "l"(map), "r"(from), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]) : "memory");
#endif
}
