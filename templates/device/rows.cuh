// Starts copying kRows rows of kRow floats, which lie one after the other in global memory, to rows kPitch apart in shared
// memory, 16 bytes a copy. The caller commits them as a group and waits for it.
template <int kRows, int kRow, int kPitch, int kThreads>
__device__ __forceinline__ void copy_rows(float* to, const float* from, int thread) {
    constexpr int kPacks = kRows * kRow / 4;
    #pragma unroll
    for (int round = 0; round < (kPacks + kThreads - 1) / kThreads; ++round) {
        const int element = (round * kThreads + thread) * 4;
        if (kPacks % kThreads != 0 && element >= kPacks * 4) break;
        cp_async<16>(to + element / kRow * kPitch + element % kRow, from + element);
    }
}
