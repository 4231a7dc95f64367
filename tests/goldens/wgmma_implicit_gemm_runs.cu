// conv2d_fprop_wgmma_implicit_gemm_n2c36i10x6_k48f1x1_bf16_nchw_b8a21c8f
// conv2d n=2 c=36 k=48 in=10x6 filter=1x1 dtype=bf16 epilogue=bias+relu
// wgmma_implicit_gemm: patches=runs,tiles=1,block_n=48,consumers=2,sharing=1,x_stages=3,w_stages=1,slabs=1,split_k=1,cluster=1
//
// Idea       The convolution is a matrix product of the patches of x and the filter. A thread tells the copy engine (TMA) which
//            tiles of w to bring into rings of stages in shared memory; warpgroups multiply them where they lie
//            (wgmma), release the stages, and store results while the next tiles are on their way. Blocks stay: each
//            works on tile after tile.
//            Of x come 64 channels of the tile's positions as they lie, the positions along the rows of a product's operand. They are
//            counted over the ends of images, as no box of TMA's is: warps copy 4 of a channel at a time (cp.async) to where TMA,
//            told to swizzle, would put them.
//            Before, w is packed: channels as neighbours, in multiples of 16 bytes.
//            Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning, 2014; Thakkar et al.: CUTLASS, its kernels for Hopper.
//
// Notation   y[n, k, o] = sum over c, f of x[n, c, o*stride - pad + f*dilation] * w[k, c, f], of each group
//            x x   w w   y y   (fprop)
//            n  batch element     2
//            c  summed channel    40 a group of 1, with those of zeros
//            k  result channel    48 a group
//            o  result position   60
//            f  tap               1
//            line                 64 channels of a pixel, 128 bytes
//            panel                the products of a line's channels with one tap, 1 in all
//
// Mapping    block       1 x 64 positions x 48 channels at a time, the tiles of channels next to each other
//            warpgroup   2 multiply, 1 to a tile, 1 x 64 positions each; of the last one warps 0 to 2 copy x, warp 3 calls for w
//            wgmma       64 positions x 48 channels x 16 terms
//            grid.x      blocks that stay, all tiles of one block of the same channels
//
// Shared     +- x,  3 stages of 8192   -+- w,  1 tiles of 6144   -+- results, a slab a warpgroup -+- mbarriers -+
//            lines of 128 bytes, their pieces of 16 moved by the swizzle of the same length
//
// Numerics   exact products, sums in fp32 as tensor cores cut them, in the order of the terms.

// fp32: storage and arithmetic are the same.
__device__ __forceinline__ float to_float(float v) { return v; }

template <typename T>
__device__ __forceinline__ T from_float(float v);

template <>
__device__ __forceinline__ float from_float<float>(float v) { return v; }

// bf16: stored as __nv_bfloat16, computed in fp32; one rounding, to nearest even, when a result is stored.
#include <cuda_bf16.h>

__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// acc + a * b in one rounding. The simulator counts its two operations.
__device__ __forceinline__ float fma_acc(float a, float b, float acc) {
#ifdef CONVGEN_SIM
    convgen_sim_count_flops(2);
#endif
    return fmaf(a, b, acc);
}

// Several neighbouring elements as one memory instruction (2 to 16 bytes, naturally aligned).
template <typename T, int kCount>
struct __align__(sizeof(T) * kCount) Pack {
    T lane[kCount];
};

template <int kCount, typename T>
__device__ __forceinline__ Pack<T, kCount> load_pack(const T* address) {
#ifdef CONVGEN_SIM
    convgen_sim_access(address, sizeof(T) * kCount, 0);
#endif
    return *reinterpret_cast<const Pack<T, kCount>*>(address);
}

template <int kCount, typename T>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, kCount>& pack) {
#ifdef CONVGEN_SIM
    convgen_sim_access(address, sizeof(T) * kCount, 1);
#endif
    *reinterpret_cast<Pack<T, kCount>*>(address) = pack;
}

// The block's dynamic shared memory, as one buffer.
#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

// An address within shared memory as PTX takes it.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
#ifdef CONVGEN_SIM
    return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - static_cast<const unsigned char*>(convgen_sim_shared()));
#else
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
#endif
}

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

// Fences (sm_90) that order what the ordinary way to memory (the generic proxy) does before the asynchronous units.

// Makes the thread's mbarrier_init visible to the units that copy.
__device__ __forceinline__ void fence_mbarrier_init() {
#ifdef CONVGEN_SIM
    convgen_sim_fence_mbarrier_init();
#else
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// What the thread has written to shared memory, and what it knows others have, is seen by TMA and wgmma from then on.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef CONVGEN_SIM
    convgen_sim_fence_proxy_async();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// What TMA knows of a tensor: a kernel parameter `const __grid_constant__ TensorMap`, encoded by the host.
struct __align__(64) TensorMap {
    unsigned char bits[128];
};

__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
#ifndef CONVGEN_SIM
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
#endif
}

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

// Copies from global to shared memory that run while their thread goes on. Before sm_80 it waits for each.
//
// A thread's copies since its last commit are a group; groups end in order. After cp_async_wait_group<N> all but the
// thread's N latest groups have ended; other threads see what they wrote after a barrier that follows. The destination is
// neither read nor written from the call to that wait, nor is it copied to before a barrier behind its last readers.

template <int kBytes>
struct __align__(kBytes) Words {
    unsigned word[kBytes / 4];
};

// kBytes (4, 8 or 16, both addresses aligned to that) of which the first `valid` are copied and the rest become zero; with
// none valid the source is not read.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, int valid = kBytes) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef CONVGEN_SIM
    convgen_sim_cp_async(shared, global, kBytes, valid);
#elif __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(address), "l"(global), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;"
                     :: "r"(address), "l"(global), "n"(kBytes), "r"(valid) : "memory");
#else
    Words<kBytes> words = {};
    if (valid == kBytes) {
        words = *static_cast<const Words<kBytes>*>(global);
    } else {
        #pragma unroll
        for (int i = 0; i < kBytes; ++i)
            if (i < valid) words.word[i / 4] |= static_cast<unsigned>(static_cast<const unsigned char*>(global)[i]) << i % 4 * 8;
    }
    *static_cast<Words<kBytes>*>(shared) = words;
#endif
}

__device__ __forceinline__ void cp_async_commit_group() {
#ifdef CONVGEN_SIM
    convgen_sim_cp_async_commit();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int kGroups>
__device__ __forceinline__ void cp_async_wait_group() {
#ifdef CONVGEN_SIM
    convgen_sim_cp_async_wait(kGroups);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(kGroups) : "memory");
#endif
}

// True for one lane of the warp, all 32 of which call (sm_90): the compiler knows that it is one. Orders no memory.
__device__ __forceinline__ bool elect_sync() {
#ifdef CONVGEN_SIM
    return convgen_sim_warp(kElect, 0xffffffffu, 0, 0, 32, __LINE__);
#else
    unsigned elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected;
#endif
}

// How many registers the threads of a warpgroup have (sm_90a): a producer of tiles needs few, a consumer many.
//
// All 128 threads call. A kernel starts with as many for every thread as its __launch_bounds__ leave (168 of 384 threads);
// what one warpgroup gives back another may take, and waits for. 24 to 256, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24 to 256, a multiple of 8");
#ifdef CONVGEN_SIM
    convgen_sim_setmaxnreg(kRegisters);
#else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kRegisters));
#endif
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24 to 256, a multiple of 8");
#ifdef CONVGEN_SIM
    convgen_sim_setmaxnreg(-kRegisters);
#else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kRegisters));
#endif
}

// Barriers of some of a block's threads: number 1 to 15 (0 is __syncthreads), `count` threads in all, whole warps.

__device__ __forceinline__ void bar_sync(unsigned number, unsigned count) {
#ifdef CONVGEN_SIM
    convgen_sim_bar_sync(number, count);
#else
    asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(count) : "memory");
#endif
}

// Counted among the threads, but does not wait: what it did before is seen by those that do.
__device__ __forceinline__ void bar_arrive(unsigned number, unsigned count) {
#ifdef CONVGEN_SIM
    convgen_sim_bar_arrive(number, count);
#else
    asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(count) : "memory");
#endif
}

// Stores of 8 x 8 matrices of 16-bit elements to shared memory (sm_90): ldmatrix.cuh the other way. All 32 lanes call.
//
// Row i of matrix m goes to the 16 bytes at the address that lane 8 * m + i gives, 16-byte aligned. Lane l holds of each
// matrix the elements [l / 4][2 * (l % 4)] and the next in that row; with kTransposed, [2 * (l % 4)][l / 4] and the next in
// that column. The accumulators of mma and wgmma, two neighbours packed to 32 bits, lie so.

template <bool kTransposed = false>
__device__ __forceinline__ void stmatrix(void* row, unsigned r0) {
#ifdef CONVGEN_SIM
    const unsigned registers[1] = {r0};
    convgen_sim_stmatrix(row, registers, 1, kTransposed);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], { %1};"
                     :: "r"(address), "r"(r0) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], { %1};"
                     :: "r"(address), "r"(r0) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void stmatrix(void* row, unsigned r0, unsigned r1) {
#ifdef CONVGEN_SIM
    const unsigned registers[2] = {r0, r1};
    convgen_sim_stmatrix(row, registers, 2, kTransposed);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], { %1, %2};"
                     :: "r"(address), "r"(r0), "r"(r1) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], { %1, %2};"
                     :: "r"(address), "r"(r0), "r"(r1) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void stmatrix(void* row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
#ifdef CONVGEN_SIM
    const unsigned registers[4] = {r0, r1, r2, r3};
    convgen_sim_stmatrix(row, registers, 4, kTransposed);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], { %1, %2, %3, %4};"
                     :: "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4};"
                     :: "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
#endif
}

// Two neighbours of 16 bits as one register.
template <typename T>
__device__ __forceinline__ unsigned pair_bits(const Pack<T, 2>& pair) {
    static_assert(sizeof(T) == 2, "a register holds two elements of 16 bits");
    unsigned bits;
#ifdef CONVGEN_SIM
    __builtin_memcpy(&bits, &pair, 4);
#else
    memcpy(&bits, &pair, 4);
#endif
    return bits;
}

// Where TMA, told to swizzle rows of kBytes (32, 64 or 128), puts what would lie at `at` in shared memory: its 16-byte piece
// changes places with others of the row, by the address of the 128 bytes it lies in.
template <int kBytes>
__device__ __forceinline__ unsigned char* swizzled(unsigned char* at) {
    const unsigned address = shared_address(at);
    return at + (static_cast<int>(address ^ (address >> 7 & (kBytes / 16 - 1)) << 4) - static_cast<int>(address));
}

// Stages of shared memory that are filled and emptied in turn: where one stands, and the parity of its mbarriers' phases.
template <int kStages>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }

    // As so many times next().
    __device__ __forceinline__ void skip(int steps) {
        stage += steps;
        parity ^= stage / kStages & 1;
        stage %= kStages;
    }
};

// Programmatic dependent launch (sm_90): a kernel that begins before the one before it on the stream has ended.
//
// It may when every block of the one before has ended or called grid_dependency_launch. Until grid_dependency_wait returns,
// when all before has ended and is seen, it touches no global memory. Without such a launch both do nothing.

__device__ __forceinline__ void grid_dependency_wait() {
#ifndef CONVGEN_SIM
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin as soon as there is room for it.
__device__ __forceinline__ void grid_dependency_launch() {
#ifndef CONVGEN_SIM
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// How wgmma (sm_90a) finds a tile in shared memory: 64 bits of start address, two distances and the swizzle.
//
// A tile is 64 rows (of a; as many as the accumulators have columns, of b) by 32 bytes of k. In the layouts of TMA, where
// a row of the swizzle is 32, 64 or 128 bytes, its 16-byte pieces changing places by address:
//     k along the row (K-major)    8 rows one after the other; `stride` bytes from 8 rows to the next 8; `leading` unused
//     rows along (MN-major)        8 k's one after the other, `stride` bytes to the next 8; `leading` bytes from one
//                                  row of the swizzle's worth of m or n to the next
// Without a swizzle pieces of 16 bytes lie in blocks of 8, 128 bytes: K-major `stride` bytes to the next 8 rows, `leading`
// to the other 16 bytes of k; MN-major `stride` to the next 8 of m or n, `leading` to the next 8 of k.
// The next 32 bytes of a K-major row are the start moved by 32; rows may start at any multiple of their size, and groups of
// 8 lie any multiple of 128 bytes apart: the swizzle follows absolute addresses and the base offset is 0 (measured).
enum WgmmaSwizzle { kWgmmaSwizzleNone, kWgmmaSwizzle128, kWgmmaSwizzle64, kWgmmaSwizzle32 };

template <WgmmaSwizzle kSwizzle>
__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* start, unsigned leading, unsigned stride) {
    unsigned long long descriptor = static_cast<unsigned long long>(kSwizzle) << 62;
    descriptor |= static_cast<unsigned long long>(stride >> 4 & 0x3fffu) << 32;
    descriptor |= static_cast<unsigned long long>(leading >> 4 & 0x3fffu) << 16;
    return descriptor | (shared_address(start) >> 4 & 0x3fffu);
}

// The descriptor of a tile `bytes` further on, a multiple of 16.
__device__ __forceinline__ unsigned long long wgmma_advance(unsigned long long descriptor, int bytes) {
    return descriptor + (bytes >> 4);
}

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

// Activations, in fp32. gelu is the exact one (erf), as PyTorch's default.
enum Activation { kNone, kRelu, kRelu6, kGelu, kSilu, kHardswish, kLeakyRelu };

template <Activation kActivation>
__device__ __forceinline__ float activate(float v, float slope) {
    if constexpr (kActivation == kRelu) return v > 0.0f ? v : v != v ? v : 0.0f;
    if constexpr (kActivation == kRelu6) return v != v ? v : fminf(fmaxf(v, 0.0f), 6.0f);
    if constexpr (kActivation == kGelu) return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    if constexpr (kActivation == kSilu) return v / (1.0f + expf(-v));
    if constexpr (kActivation == kHardswish) return v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
    if constexpr (kActivation == kLeakyRelu) return v > 0.0f ? v : v * slope;
    return v;
}

using in_t = __nv_bfloat16;
using out_t = __nv_bfloat16;
using offset_t = int;
// Tensor cores of a warpgroup (sm_90a): d += a * b, or d = a * b, with b in shared memory, a there or in registers.
//
// d is 64 x n, a 64 x k, b k x n, where k elements are 256 bits. Tiles are told by descriptors (wgmma_descriptor.cuh);
// transposed (16-bit types only), they lie with m or n along their rows. Thread t of the 128 holds
//     d[i]              row t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2),   column i / 4 * 8 + t % 4 * 2 + i % 2
//     a[i]              as in mma.cuh, of the 16 rows of its warp
// All call together, between wgmma_fence and wgmma_commit_group (wgmma_group.cuh).
typedef float WgmmaSum;
constexpr int kWgmmaType = 1;  // bf16

template <bool kATransposed = false, bool kBTransposed = false>
__device__ __forceinline__ void wgmma_mma_async(
    WgmmaSum (&d)[24], unsigned long long a, unsigned long long b, bool accumulate
) {
#ifdef CONVGEN_SIM
    convgen_sim_wgmma(d, nullptr, a, b, kWgmmaType, 48, accumulate, kATransposed, kBTransposed);
#else
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %26, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
        "%24, %25, p, 1, 1, %27, %28;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(int(kATransposed)), "n"(int(kBTransposed))
        : "memory");
#endif
}

template <bool kBTransposed = false>
__device__ __forceinline__ void wgmma_mma_async(
    WgmmaSum (&d)[24], const unsigned (&a)[4], unsigned long long b, bool accumulate
) {
#ifdef CONVGEN_SIM
    convgen_sim_wgmma(d, a, 0, b, kWgmmaType, 48, accumulate, false, kBTransposed);
#else
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %29, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
        "{ %24, %25, %26, %27}, "
        "%28, p, 1, 1, %30;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(int(kBTransposed))
        : "memory");
#endif
}

constexpr int batch = 2;
constexpr int kGroups = 1, kM = 48, kQ = 40;
constexpr int kOutW = 60, kTapsW = 1, kStrideW = 1, kPadW = 0, kDilationW = 1;

// Of x: strides in elements, channels of a group or of those that share a line, and how many of them products read.
constexpr offset_t kXBatch = 2160, kXChannel = 60;
constexpr int kXChannels = 36, kXLines = 48;
constexpr int kRun = 4;  // positions that are copied at a time
constexpr int kCopiers = 3;  // warps

// Strides of y, in elements.
constexpr offset_t kYBatch = 2880, kYM = 60, kYW = 1;

// Tunables.
constexpr int kTiles = 1, kBlockN = 48;
constexpr int kConsumers = 2, kSharing = 1;
constexpr int kXStages = 3, kWStages = 1;
constexpr int kParts = 1;

constexpr int kSlots = kConsumers / kSharing;  // tiles that a block works on at a time
constexpr int kSubtiles = kSharing * kTiles;
constexpr int kSharedGroups = 1;  // groups whose channels lie in a line
constexpr int kLine = 64;
constexpr int kKSteps = 3;
constexpr int kTaps = 1;
constexpr int kPanels = 1, kPanelsOfPart = 1;
constexpr int kChunks = 1;
constexpr int kUnits = 60, kUnitsOfBlock = 64 * kSubtiles;  // positions
constexpr int kTilesM = (kM + kBlockN - 1) / kBlockN;  // of a group, or of those that share a line
constexpr int kChannelTiles = kGroups / kSharedGroups * kTilesM;

constexpr int kXBytes = 8192, kWBytes = 6144;
constexpr int kSubtileBytes = 8192;  // of x, from the pixels of 64 positions to the next's
constexpr int kWRowBytes = 128;
constexpr int kWAt = 24576, kStagingAt = 30720, kBarriersAt = 43008;
constexpr int kSlabs = 1, kSlabBytes = 6144;
constexpr int kYLine = 64;  // positions of a line of a slab, which is a line for each channel

// What follows the accumulator, in this order: bias, activation.
struct Epilogue {
    const __nv_bfloat16* bias;

    // `channel` of the result and `offset` of the element in y; rounding to y's type is the caller's.
    __device__ __forceinline__ float apply(const out_t* y, offset_t offset, int channel, float value) const {
        value += to_float(bias[channel]);
        value = activate<kRelu>(value, 0.01f);
        return value;
    }
};

// A tile of results: the tiles of channels first, then the positions.
struct Tile {
    int x_channel, channel, left;  // the first channels of x and y; how many of y are left of the group
    int unit;                      // the first subtile or position
    int first_panel = 0, panels = kPanels;

    __device__ __forceinline__ explicit Tile(int tile) {
        const int of_group = tile % kChannelTiles;
        const int group = of_group / kTilesM * kSharedGroups, m = of_group % kTilesM * kBlockN;
        unit = tile / kChannelTiles * kUnitsOfBlock;
        x_channel = group * kQ;
        channel = group * kM + m;
        left = kSharedGroups > 1 ? kSharedGroups * kM : kM - m;
    }
};

// Where a position of a block's tile lies in y; at 0 where it is no result.
struct Place {
    bool exists;
    offset_t offset;

    __device__ __forceinline__ Place(int unit, int subtile, int row) {
        int image = unit + subtile * 64 + row;
        const int w = image % kOutW;
        image /= kOutW;
        exists = image < batch;
        offset = exists ? image * kYBatch + w * kYW : 0;
    }
};

// w likewise: [result channel][tap][channel]. A block brings 256 pieces, 16 bytes of channels
// with all their taps, into shared memory as they lie and takes them out a tap at a time. The first elements of eight pieces
// that follow lie in different banks, four apart: there is an odd number of 16 bytes from one to the next.
extern "C" __global__ void __launch_bounds__(256)
conv2d_fprop_wgmma_implicit_gemm_pack_w_n2c36i10x6_k48f1x1_bf16_nchw_b8a21c8f(const __nv_bfloat16* __restrict__ w, __nv_bfloat16* __restrict__ packed_w) {
    CONVGEN_SHARED(shared);
    grid_dependency_launch();
    typedef __nv_bfloat16 w_t;
    constexpr int kPiece = 16 / sizeof(w_t), kPieces = kQ / kPiece;  // of a result channel
    constexpr int kRun = 4;  // neighbours that a load takes
    constexpr int kPositions = 1, kPitch = 1 * kPiece;
    constexpr int kTile = 256, kThreads = 256;
    constexpr int kRuns = kPiece * kPositions / kRun;  // of a piece
    w_t* const tile = reinterpret_cast<w_t*>(shared);
    const int first = blockIdx.x * kTile;
    #pragma unroll 4
    for (int begin = 0; begin < kTile * kRuns; begin += kThreads) {
        const int i = begin + threadIdx.x, piece = i / kRuns, at = i % kRuns * kRun;
        const int m = (first + piece) / kPieces, from = (first + piece) % kPieces * (kPiece * kPositions) + at;
        if (piece < kTile && m < kGroups * kM && from < 36 * kPositions)
            store_pack(tile + piece * kPitch + at, load_pack<kRun>(w + static_cast<offset_t>(m) * 36 + from));
    }
    __syncthreads();
    #pragma unroll 4
    for (int begin = 0; begin < kTile * kPositions; begin += kThreads) {
        const int i = begin + threadIdx.x, piece = i / (8 * kPositions) * 8 + i % 8, tap = i / 8 % kPositions;
        const int m = (first + piece) / kPieces, channel = (first + piece) % kPieces * kPiece;
        if (piece >= kTile || m >= kGroups * kM) continue;
        Pack<w_t, kPiece> channels = {};
        #pragma unroll
        for (int c = 0; c < kPiece; ++c)
            if (channel + c < 36) channels.lane[c] = tile[piece * kPitch + c * kPositions + tap];
        w_t* const to = packed_w + (static_cast<offset_t>(m) * kPositions + tap) * kQ + channel;
        store_pack(to, channels);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
conv2d_fprop_wgmma_implicit_gemm_n2c36i10x6_k48f1x1_bf16_nchw_b8a21c8f(const __nv_bfloat16* __restrict__ x, const __grid_constant__ TensorMap w, const __nv_bfloat16* __restrict__ bias, __nv_bfloat16* y) {
    CONVGEN_SHARED(shared);
    unsigned long long* const x_full = reinterpret_cast<unsigned long long*>(shared + kBarriersAt);
    unsigned long long* const x_empty = x_full + kXStages;
    unsigned long long* const w_full = x_empty + kXStages;
    unsigned long long* const turns = w_full + kWStages;  // of the tiles that a block works on at a time
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kXStages; ++stage) {
            mbarrier_init(x_full + stage, kCopiers * 32);
            mbarrier_init(x_empty + stage, kSharing);
        }
        for (int stage = 0; stage < kWStages; ++stage) {
            mbarrier_init(w_full + stage, 1);
        }
        for (int slot = 0; slot < kSlots; ++slot) mbarrier_init(turns + slot, kSharing);
        fence_mbarrier_init();
    }
    grid_dependency_wait();
    __syncthreads();
    const int tiles = (batch * kUnits + kUnitsOfBlock - 1) / kUnitsOfBlock * kChannelTiles;
    const int all = tiles;
    const int warpgroup = threadIdx.x / 128;

    if (warpgroup == kConsumers) {  // calls for tiles
        setmaxnreg_dec<56>();
        const int warp = threadIdx.x / 32 % 4;
        if (warp == 3 && elect_sync()) {
            prefetch_tensormap(&w);
            Ring<kWStages> ring;
            for (int number = blockIdx.x; number < all; number += gridDim.x) {
                const Tile tile(number);
                for (int panel = tile.first_panel; panel < tile.first_panel + tile.panels; ++panel) {
                    for (int tap = 0; tap < kTaps; ++tap) {
                        mbarrier_arrive_expect_tx(w_full + ring.stage, 6144);
                        const int from[3] = {panel % kChunks * kLine, panel / kChunks * kTaps + tap, tile.channel};
                        cp_async_bulk_tensor_load(shared + kWAt + ring.stage * kWBytes, &w, from, w_full + ring.stage);
                        ring.next();
                    }
                }
                break;  // the tiles stay
            }
        }
        if (warp < kCopiers) {
            // A lane has a run of each 64 positions, and the warps deal out parcels of them: a run a lane, and the same of every eighth channel.
            constexpr int kBytes = kRun * 2, kRuns = 64 / kRun, kChannels = 32 / kRuns, kParcels = 8 / kChannels;
            const int lane = threadIdx.x % 32, position = lane % kRuns * kRun;
            Ring<kXStages> ring;
            for (int number = blockIdx.x; number < all; number += gridDim.x) {
                const Tile tile(number);
                const int left = batch * kOutW - (tile.unit + position);  // positions, of which every 64th is the lane's
                offset_t begin[kSubtiles];
                #pragma unroll
                for (int s = 0; s < kSubtiles; ++s) {
                    const int at = tile.unit + position + s * 64;
                    begin[s] = s * 64 < left ? at / kOutW * kXBatch + at % kOutW : 0;
                }
                for (int panel = tile.first_panel; panel < tile.first_panel + tile.panels; ++panel) {
                    mbarrier_wait_parity(x_empty + ring.stage, ring.parity ^ 1);
                    int parcel = warp;
                    #pragma unroll
                    for (int s = 0; s < kSubtiles; ++s) {
                        #pragma unroll 1
                        for (; parcel < kParcels; parcel += kCopiers) {
                            const int line = parcel * kChannels + lane / kRuns;
                            const in_t* const from = x + (begin[s] + (tile.x_channel + panel * kLine + line) * kXChannel);
                            unsigned char* const to = swizzled<128>(shared + ring.stage * kXBytes + s * kSubtileBytes + line * 128 + position * 2);
                            #pragma unroll
                            for (int on = 0; on < kXLines; on += 8)  // lines that are swizzled alike
                                cp_async<kBytes>(to + on * 128, from + on * kXChannel,
                                                 s * 64 < left && panel * kLine + line + on < kXChannels ? kBytes : 0);
                        }
                        parcel -= kParcels;
                    }
                    cp_async_mbarrier_arrive_noinc(x_full + ring.stage);  // when they have ended
                    ring.next();
                }
            }
        }
        return;
    }

    setmaxnreg_inc<224>();
    const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const int first_subtile = warpgroup % kSharing * kTiles;
    const Epilogue epilogue{bias};
    Ring<kXStages> x_ring;
    Ring<kWStages> w_ring;
    const int slot = warpgroup / kSharing;
    int turn = 0, next_slab = 0;
    for (int number = blockIdx.x; number < all; number += gridDim.x, ++turn) {
        const Tile tile(number);
        if (turn % kSlots != slot) {
            x_ring.skip(tile.panels);
            continue;
        }

        // The sums. While the products of one tap run, those of the next are given; then the one before it is released.
        float d[kTiles][kSharedGroups][kBlockN / 2];
        int x_held = -1;  // stages that products still read
        bool accumulate = false;
        mbarrier_wait_parity(turns + slot, (turn / kSlots & 1) ^ (slot == 0));  // the tile before has met all its stages
        for (int panel = 0; panel < tile.panels; ++panel) {
            const unsigned char* const pixels = shared + x_ring.stage * kXBytes + first_subtile * kSubtileBytes;
            mbarrier_wait_parity(x_full + x_ring.stage, x_ring.parity);
            fence_proxy_async();  // threads wrote it
            #pragma unroll 1
            for (int tap = 0; tap < kTaps; ++tap) {
                const unsigned char* const from = pixels;
                const int w_tile = panel * kTaps + tap;
                if (turn < kSlots) mbarrier_wait_parity(w_full + w_tile, 0);
                const unsigned long long a = wgmma_descriptor<kWgmmaSwizzle128>(from, 0, 1024);
                const unsigned long long b = wgmma_descriptor<kWgmmaSwizzle128>(shared + kWAt + w_tile * kWBytes, 0, 8 * kWRowBytes);
                #pragma unroll
                for (int t = 0; t < kTiles; ++t) {
                    #pragma unroll
                    for (int s = 0; s < kSharedGroups; ++s) wgmma_fence(d[t][s]);
                }
                #pragma unroll
                for (int k = 0; k < kKSteps; ++k) {
                    #pragma unroll
                    for (int t = 0; t < kTiles; ++t) {
                        #pragma unroll
                        for (int s = 0; s < kSharedGroups; ++s)
                            wgmma_mma_async<true>(d[t][s], wgmma_advance(a, t * kSubtileBytes + s * (kKSteps * 2048) + k * 2048),
                                            wgmma_advance(b, s * (kBlockN * kWRowBytes) + k * 32), accumulate || k > 0);
                    }
                }
                wgmma_commit_group();
                wgmma_wait_group<1>();
                if (thread == 0) {
                    if (x_held >= 0) mbarrier_arrive(x_empty + x_held);
                }
                accumulate = true;
                x_held = -1;
            }
            x_held = x_ring.stage;
            x_ring.next();
        }
        if (thread == 0) mbarrier_arrive(turns + (slot + 1) % kSlots);
        #pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            #pragma unroll
            for (int s = 0; s < kSharedGroups; ++s) wgmma_wait_group<0>(d[t][s]);
        }
        if (thread == 0) {
            mbarrier_arrive(x_empty + x_held);
        }

        // The results. Of a thread's sums, d[i] is that of row() + 8 * (i / 2 % 2) and channel i / 4 * 8 + lane % 4 * 2 + i % 2.
        const int row = thread / 32 * 16 + lane / 4;
        #pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            unsigned char* const slab = shared + kStagingAt + (warpgroup * kSlabs + next_slab) * kSlabBytes;
            next_slab = (next_slab + 1) % kSlabs;
            bar_sync(1 + warpgroup, 128);
            #pragma unroll
            for (int s = 0; s < kSharedGroups; ++s) {
                #pragma unroll
                for (int j = 0; j < kBlockN / 8; ++j) {
                    const int along = s * kBlockN + j * 8 + lane % 4 * 2;
                    unsigned pairs[2];
                    #pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        Pack<out_t, 2> pair;
                        #pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const int channel = tile.channel + min(along + i, tile.left - 1);
                            pair.lane[i] = from_float<out_t>(epilogue.apply(y, 0, channel, d[t][s][j * 4 + half * 2 + i]));
                        }
                        pairs[half] = pair_bits(pair);
                    }
                    unsigned char* const at = slab + (s * kBlockN + j * 8 + lane % 8) * (kYLine * 2) + (thread / 32 * 16 + lane / 8 % 2 * 8) * 2;
                    stmatrix<true>(swizzled<128>(at), pairs[0], pairs[1]);
                }
            }
            bar_sync(1 + warpgroup, 128);
            constexpr int kRuns = 16;  // of 4 positions that are neighbours in y, or no results
            const int first = thread % kRuns * 4;
            const Place place(tile.unit, first_subtile + t, first);
            const int channels = place.exists ? min(tile.left, kSharedGroups * kBlockN) : 0;
            #pragma unroll 4
            for (int along = thread / kRuns; along < channels; along += 128 / kRuns) {
                unsigned char* const at = slab + along * (kYLine * 2) + first * 2;
                store_pack(y + (place.offset + (tile.channel + along) * kYM), load_pack<4>(reinterpret_cast<const out_t*>(swizzled<128>(at))));
            }
        }
    }
}
