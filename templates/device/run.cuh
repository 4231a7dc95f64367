// kRows rows of kRow floats that lie one after the other in global memory, on their way to rows kPitch apart in shared
// memory, 16 bytes an access. Between fetch and store a thread holds its part in registers, so that they travel while
// those before are being multiplied.
template <int kRows, int kRow, int kPitch, int kThreads>
struct Run {
    static constexpr int kPacks = kRows * kRow / 4;
    static constexpr int kRounds = (kPacks + kThreads - 1) / kThreads;

    Pack<float, 4> held[kRounds];

    __device__ __forceinline__ void fetch(int thread, const float* from) {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int pack = round * kThreads + thread;
            if (kPacks % kThreads != 0 && pack >= kPacks) break;
            held[round] = load_pack<4>(from + pack * 4);
        }
    }

    __device__ __forceinline__ void store(int thread, float* to) const {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int pack = round * kThreads + thread;
            if (kPacks % kThreads != 0 && pack >= kPacks) break;
            store_pack(to + pack * 4 / kRow * kPitch + pack * 4 % kRow, held[round]);
        }
    }
};
