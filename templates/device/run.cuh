// kFloats neighbouring floats on their way from global to shared memory, 16 bytes an access. Between fetch and store a
// thread holds its part in registers, so that a run travels while the one before it is being multiplied.
template <int kFloats, int kThreads>
struct Run {
    static constexpr int kPacks = kFloats / 4;
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
            store_pack(to + pack * 4, held[round]);
        }
    }
};
