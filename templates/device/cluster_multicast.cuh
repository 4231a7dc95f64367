// TMA multicast (sm_90): a box of a tensor to the same place in several blocks of a cluster, read once.
//
// `ranks` has the bit of each. The bytes count on the mbarrier that lies in each of them where `mbarrier` does: it has been
// initialised there, and expects them. Otherwise as cp_async_bulk_tensor_load: what holds for the memory holds in each.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast(
    void* shared, const TensorMap* map, const int (&at)[kRank], unsigned long long* mbarrier, unsigned short ranks
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has one to five dimensions");
#ifdef CONVGEN_SIM
    convgen_sim_tensor_load_multicast(shared, map, at, kRank, mbarrier, ranks);
#else
    const unsigned to = shared_address(shared), barrier = shared_address(mbarrier);
    if constexpr (kRank == 1)
        asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4}], [%2], %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]) : "memory");
    if constexpr (kRank == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5}], [%2], %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]) : "memory");
    if constexpr (kRank == 3)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5, %6}], [%2], %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]), "r"(at[2]) : "memory");
    if constexpr (kRank == 4)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5, %6, %7}], [%2], %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]) : "memory");
    if constexpr (kRank == 5)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5, %6, %7, %8}], [%2], %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]) : "memory");
#endif
}
