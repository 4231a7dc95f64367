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
