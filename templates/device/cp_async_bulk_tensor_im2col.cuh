// TMA (sm_90) in im2col mode: rows of channels, pixel after pixel of a convolution's outputs, for one tap of its filter.
//
// The pixels go from `at` (channel, spatial innermost first, image) on along the box that the map (tensor_map.Im2colMap)
// tells, wrapping from row to row and image to image; `shift` (spatial, innermost first) is added to each, and what then
// lies outside the tensor is zero. Otherwise as cp_async_bulk_tensor_load.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_im2col(
    void* shared, const TensorMap* map, const int (&at)[kRank], const unsigned short (&shift)[kRank - 2],
    unsigned long long* mbarrier
) {
    static_assert(kRank >= 3 && kRank <= 5, "channels, one to three spatial axes, images");
#ifdef CONVGEN_SIM
    convgen_sim_tensor_load_im2col(shared, map, at, shift, kRank, mbarrier);
#else
    const unsigned to = shared_address(shared), barrier = shared_address(mbarrier);
    if constexpr (kRank == 3)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                     "[%0], [%1, { %3, %4, %5}], [%2], { %6};"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "h"(shift[0]) : "memory");
    if constexpr (kRank == 4)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                     "[%0], [%1, { %3, %4, %5, %6}], [%2], { %7, %8};"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "h"(shift[0]), "h"(shift[1]) : "memory");
    if constexpr (kRank == 5)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                     "[%0], [%1, { %3, %4, %5, %6, %7}], [%2], { %8, %9, %10};"
                     :: "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "h"(shift[0]), "h"(shift[1]), "h"(shift[2]) : "memory");
#endif
}
