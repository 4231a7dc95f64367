// The sum of `values` over the kAcross threads of a block that have the same index `other`; each of them gets it, with
// the same bits. Neighbours in `across` are kStep threads apart, kStep * kAcross or kOthers * kStep of them make a block;
// both are powers of two. `shared` holds kOthers * kAcross * kCount floats. All threads of the block call it together.
template <int kAcross, int kStep, int kOthers, int kCount>
__device__ __forceinline__ void block_sum(float (&values)[kCount], int across, int other, float* shared) {
    constexpr int kReach = 32 / kStep;  // neighbours in a warp
    constexpr int kInWarp = kReach < 1 ? 1 : kReach < kAcross ? kReach : kAcross;
    constexpr int kGroups = kAcross / kInWarp;
    #pragma unroll
    for (int distance = 1; distance < kInWarp; distance *= 2) {
        #pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance * kStep);
    }
    if constexpr (kGroups > 1) {
        __syncthreads();  // nobody reads the sums before any more
        if (across % kInWarp == 0) {
            #pragma unroll
            for (int i = 0; i < kCount; ++i) shared[(across / kInWarp * kCount + i) * kOthers + other] = values[i];
        }
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float sum = 0.0f;
            for (int group = 0; group < kGroups; ++group) sum += shared[(group * kCount + i) * kOthers + other];
            values[i] = sum;
        }
    }
}
