// Hooks of the wrappers for sm_90a.
#pragma once

// Calls in two branches stay two, and one is not copied into two: threads meet at the same instruction, and a fault has a
// line. (GCC: see FAMILY_FLAGS in toolchain.py.)
#ifdef __clang__
#pragma clang attribute push(__attribute__((nomerge)), apply_to = function)
#pragma clang attribute push(__attribute__((convergent)), apply_to = function)
#endif
extern "C" {
void convgen_sim_mbarrier_init(void* mbarrier, unsigned count);
void convgen_sim_mbarrier_inval(void* mbarrier);
// `count` arrivals (0: none) after the phase is told to wait for so many bytes more.
void convgen_sim_mbarrier_arrive(void* mbarrier, unsigned count, unsigned transactions);
void convgen_sim_mbarrier_wait(void* mbarrier, unsigned parity);
void convgen_sim_fence_mbarrier_init();
void convgen_sim_fence_proxy_async();
void convgen_sim_cp_async_mbarrier_arrive(void* mbarrier);

// Box of a 128-byte tensor map (convgen/simulator/tensor_map.py) at coordinates, the innermost first.
void convgen_sim_tensor_load(void* shared, const void* map, const int* at, int rank, void* mbarrier);
// `shift`: the offsets of rank - 2 spatial coordinates.
void convgen_sim_tensor_load_im2col(void* shared, const void* map, const int* at, const unsigned short* shift, int rank,
                                    void* mbarrier);
// To each block of the cluster whose rank's bit is set.
void convgen_sim_tensor_load_multicast(void* shared, const void* map, const int* at, int rank, void* mbarrier, unsigned short ranks);
void convgen_sim_tensor_load_im2col_multicast(void* shared, const void* map, const int* at, const unsigned short* shift, int rank,
                                              void* mbarrier, unsigned short ranks);
void convgen_sim_tensor_store(const void* map, const int* at, int rank, const void* shared);
void convgen_sim_bulk_load(void* shared, const void* global, unsigned bytes, void* mbarrier);
void convgen_sim_bulk_store(void* global, const void* shared, unsigned bytes);
void convgen_sim_bulk_commit();
void convgen_sim_bulk_wait(int groups);

// Of grid_dependency_wait: behind it the thread may touch what kernels before have used (units.py).
void convgen_sim_grid_dependency_wait();

__attribute__((const)) unsigned convgen_sim_cluster_rank();
__attribute__((const)) unsigned convgen_sim_cluster_size();
void* convgen_sim_cluster_map(const void* shared, unsigned rank);
void convgen_sim_cluster_arrive();
void convgen_sim_cluster_wait();
void convgen_sim_mbarrier_arrive_cluster(void* mbarrier, unsigned rank, int is_release);

void convgen_sim_bar_sync(unsigned number, unsigned count);
void convgen_sim_bar_arrive(unsigned number, unsigned count);
// As convgen_sim_ldmatrix, the other way.
void convgen_sim_stmatrix(void* row, const unsigned* registers, int matrices, int transposed);
// Of a warpgroup: how many registers its threads want, negative to have so few.
void convgen_sim_setmaxnreg(int registers);

// Of all 128 threads of a warpgroup. `a`: four registers, or null for a tile; `type` as in templates/device/wgmma.cuh.j2.
void convgen_sim_wgmma(void* d, const unsigned* a, uint64_t a_tile, uint64_t b_tile, int type, int n, int accumulate,
                       int a_transposed, int b_transposed);
void convgen_sim_wgmma_fence();
void convgen_sim_wgmma_commit();
void convgen_sim_wgmma_wait(int groups);
}
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute pop
#endif
