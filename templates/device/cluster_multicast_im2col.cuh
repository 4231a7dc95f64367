// TMA multicast (sm_90) in im2col mode: the pixels of cp_async_bulk_tensor_load_im2col to several blocks of a cluster, as
// cp_async_bulk_tensor_load_multicast.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_im2col_multicast(
    void* shared, const TensorMap* map, const int (&at)[kRank], const unsigned short (&shift)[kRank - 2],
    unsigned long long* mbarrier, unsigned short ranks
) {
    static_assert(kRank >= 3 && kRank <= 5, "channels, one to three spatial axes, images");
#ifdef CONVGEN_SIM
    convgen_sim_tensor_load_im2col_multicast(shared, map, at, shift, kRank, mbarrier, ranks);
#else
    const unsigned to = shared_address(shared), barrier = shared_address(mbarrier);
    if constexpr (kRank == 3)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5, %6}], [%2], { %7}, %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "h"(shift[0]) : "memory");
    if constexpr (kRank == 4)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5, %6, %7}], [%2], { %8, %9}, %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "h"(shift[0]), "h"(shift[1]) : "memory");
    if constexpr (kRank == 5)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, { %4, %5, %6, %7, %8}], [%2], { %9, %10, %11}, %3;"
                     :: "r"(to), "l"(map), "r"(barrier), "h"(ranks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "h"(shift[0]), "h"(shift[1]), "h"(shift[2]) : "memory");
#endif
}
