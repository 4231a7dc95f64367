// A kExtent x kDepth tile of an operand on its way from global to shared memory. `depth` is the summed index, `extent`
// the other one. Between fetch and store a thread holds its part in registers, so that a tile travels while the one
// before it is being multiplied. In shared memory the tile is float[kDepth][kExtent + kSkew].
constexpr int kSkew = 4;  // moves the rows of a transposing store to different banks, keeps 16-byte alignment

template <typename T, int kCount>
__device__ __forceinline__ Pack<T, kCount> zero_pack() {
    Pack<T, kCount> pack;
    #pragma unroll
    for (int i = 0; i < kCount; ++i) pack.lane[i] = from_float<T>(0.0f);
    return pack;
}

// Packs of kPack elements lie along the depth (kAlongDepth) or along the extent, as they do in global memory.
template <typename T, int kExtent, int kDepth, int kPack, bool kAlongDepth, int kThreads>
struct Tile {
    static constexpr int kFloats = kDepth * (kExtent + kSkew);
    static constexpr int kPacks = kExtent * kDepth / kPack;
    static constexpr int kRounds = (kPacks + kThreads - 1) / kThreads;
    static constexpr int kRow = (kAlongDepth ? kDepth : kExtent) / kPack;  // packs side by side

    Pack<T, kPack> held[kRounds];

    // read(extent, depth) returns the pack whose first element lies there.
    template <typename Read>
    __device__ __forceinline__ void fetch(int thread, Read read) {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int pack = round * kThreads + thread;
            if (kPacks % kThreads != 0 && pack >= kPacks) break;
            const int along = pack % kRow * kPack, across = pack / kRow;
            held[round] = kAlongDepth ? read(across, along) : read(along, across);
        }
    }

    __device__ __forceinline__ void store(int thread, float* shared) const {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int pack = round * kThreads + thread;
            if (kPacks % kThreads != 0 && pack >= kPacks) break;
            const int along = pack % kRow * kPack, across = pack / kRow;
            Pack<float, kPack> values;
            #pragma unroll
            for (int i = 0; i < kPack; ++i) values.lane[i] = to_float(held[round].lane[i]);
            if constexpr (kAlongDepth) {
                #pragma unroll
                for (int i = 0; i < kPack; ++i) shared[(along + i) * (kExtent + kSkew) + across] = values.lane[i];
            } else {
                store_pack(shared + across * (kExtent + kSkew) + along, values);
            }
        }
    }
};

// The kTile of a block's kBlock rows (or columns) that belong to one thread come in runs of up to four neighbours, the
// runs of all threads side by side: index of element i of `thread`'s.
template <int kBlock, int kTile>
__device__ __forceinline__ constexpr int fragment_index(int thread, int i) {
    constexpr int kRun = kTile < 4 ? kTile : 4;
    return i / kRun * (kBlock / (kTile / kRun)) + thread * kRun + i % kRun;
}

template <int kBlock, int kTile>
__device__ __forceinline__ void load_fragment(float (&fragment)[kTile], const float* row, int thread) {
    constexpr int kRun = kTile < 4 ? kTile : 4;
    #pragma unroll
    for (int i = 0; i < kTile; i += kRun) {
        const Pack<float, kRun> run = load_pack<kRun>(row + fragment_index<kBlock, kTile>(thread, i));
        #pragma unroll
        for (int j = 0; j < kRun; ++j) fragment[i + j] = run.lane[j];
    }
}
