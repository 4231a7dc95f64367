// One pass over all transforms of a tile along one axis, each of which consecutive passes have split into transforms of
// kLength points. The pass splits these further, in place: kRadix points kStep apart are transformed and turned by roots
// of unity, after which every kStep consecutive points are a transform of their own. At the end frequencies lie in
// digit-reversed order (Gentleman and Sande, 1966). The inverse takes the passes back in the opposite order, so no point
// is ever moved.
template <int radix, int length, int points, int lanes, int lane_stride, int stride, int twiddles, int first_turn>
struct Pass {
    static constexpr int kRadix = radix;
    static constexpr int kStep = length / radix;
    static constexpr int kItems = points / radix * lanes;  // transforms of kRadix points in a tile
    static constexpr int kRows = kStep > 1 ? radix - first_turn : 0;

    int plane, item, lane, first, turn;  // which tile, which item of it, which transform, its first point, its root

    __device__ __forceinline__ explicit Pass(int index) {
        plane = index / kItems;
        item = index % kItems;
        lane = item % lanes;
        const int butterfly = item / lanes;
        turn = butterfly % kStep;
        first = butterfly / kStep * length + turn;
    }

    // Where point j of the item lies.
    __device__ __forceinline__ float* at(float* tiles, int j) const {
        const int point = first + j * kStep;
        if constexpr (stride == 0) return tiles + 2 * (plane * kPlane + point + point / kGap);
        return tiles + 2 * (plane * kPlane + lane * lane_stride + point * stride);
    }

    __device__ __forceinline__ void load(Complex (&v)[kRadix], float* tiles) const {
        #pragma unroll
        for (int j = 0; j < kRadix; ++j) {
            const Pack<float, 2> pack = load_pack<2>(at(tiles, j));
            v[j] = {pack.lane[0], pack.lane[1]};
        }
    }

    __device__ __forceinline__ void store(const Complex (&v)[kRadix], float* tiles) const {
        #pragma unroll
        for (int j = 0; j < kRadix; ++j) store_pack(at(tiles, j), Pack<float, 2>{v[j].x, v[j].y});
    }

    // The turns between this pass and the next, the same both ways.
    __device__ __forceinline__ void twist(Complex (&v)[kRadix]) const {
        #pragma unroll
        for (int row = 0; row < kRows; ++row) {
            const Pack<float, 2> root = load_pack<2>(kRoots + 2 * (twiddles + row * kStep + turn));
            v[row + first_turn] = v[row + first_turn] * Complex{root.lane[0], root.lane[1]};
        }
    }
};

template <typename P>
__device__ __forceinline__ void forward_pass(float* tiles, int planes, int thread) {
    #pragma unroll 1
    for (int index = thread; index < planes * P::kItems; index += kThreads) {
        const P item(index);
        Complex v[P::kRadix];
        item.load(v, tiles);
        dft(v);
        item.twist(v);
        item.store(v, tiles);
    }
}

template <typename P>
__device__ __forceinline__ void inverse_pass(float* tiles, int planes, int thread) {
    #pragma unroll 1
    for (int index = thread; index < planes * P::kItems; index += kThreads) {
        const P item(index);
        Complex v[P::kRadix];
        item.load(v, tiles);
        item.twist(v);
        dft(v);
        item.store(v, tiles);
    }
}
