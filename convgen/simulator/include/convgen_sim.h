// CUDA C++ for a host compiler: included before every emitted source that the simulator builds.
//
// Declarations only, C headers only (a build takes 0.1 s). The execution model itself is in ../src, compiled once.
#pragma once

#define CONVGEN_SIM 1

#include <stddef.h>
#include <stdint.h>

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
// The alignment is twice what constant memory holds. So there is a gap after each array, whatever its size, and a read
// beyond one does not fall in the next.
#define __constant__ __attribute__((aligned(131072)))

// For helpers whose own memory accesses the simulator must not see.
#define CONVGEN_SIM_UNSEEN static __attribute__((noinline, no_sanitize("thread")))

#include "convgen_sim_vectors.h"

// --- the simulator's side -----------------------------------------------------------------------------

extern "C" {
// Constant within one thread's run of a kernel, so calls to them are merged and leave loops.
__attribute__((const)) uint3 convgen_sim_thread_index();
__attribute__((const)) uint3 convgen_sim_block_index();
__attribute__((const)) dim3 convgen_sim_block_dim();
__attribute__((const)) dim3 convgen_sim_grid_dim();
__attribute__((const)) void* convgen_sim_shared();

// kind: 0 barrier alone, 1 count, 2 and, 3 or of `predicate` over the block.
int convgen_sim_barrier(int kind, int predicate, int line);
// Wait for the lanes of `mask`, exchange `value`; kind is one of WarpOperation, `operand` its lane or distance.
uint64_t convgen_sim_warp(int kind, unsigned mask, uint64_t value, int operand, int width, int line);
unsigned convgen_sim_active_mask();
float convgen_sim_texture(unsigned long long texture, float x, float y);
void convgen_sim_atomic(const void* address, int bytes);
[[noreturn]] void convgen_sim_trap(int line);

// Instructions of a whole warp, each lane with its own fragments; they are no synchronisation of memory.
// Fragments as in templates/device/mma.cuh; `type` is its MmaType.
void convgen_sim_mma(int type, void* d, const unsigned* a, const unsigned* b);
// `matrices` (1, 2 or 4) 8 x 8 matrices of 16-bit elements, as in templates/device/ldmatrix.cuh.
void convgen_sim_ldmatrix(unsigned* registers, const void* row, int matrices, int transposed);

void convgen_sim_cp_async(void* shared, const void* global, int bytes, int valid);
void convgen_sim_cp_async_commit();
void convgen_sim_cp_async_wait(int groups);

#ifdef CONVGEN_SIM_CHECK
void convgen_sim_count_flops(int flops);
void convgen_sim_access(const void* address, int bytes, int is_write);
#else
static inline void convgen_sim_count_flops(int) {}
static inline void convgen_sim_access(const void*, int, int) {}
#endif
}

#define threadIdx (convgen_sim_thread_index())
#define blockIdx (convgen_sim_block_index())
#define blockDim (convgen_sim_block_dim())
#define gridDim (convgen_sim_grid_dim())
constexpr int warpSize = 32;

#include "convgen_sim_math.h"
#include "convgen_sim_sync.h"
#include "convgen_sim_atomics.h"
#include "convgen_sim_hopper.h"

typedef unsigned long long cudaTextureObject_t;

template <typename T>
__forceinline__ T tex2D(cudaTextureObject_t texture, float x, float y) {
    return static_cast<T>(convgen_sim_texture(texture, x, y));
}

template <typename T>
__forceinline__ T __ldg(const T* address) { return *address; }
