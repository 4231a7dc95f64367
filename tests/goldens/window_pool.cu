// avg_pool2d_f3x3_window_pool_n2c8i13x12_fp32_nchw_2bc31bd7
// avg_pool2d n=2 c=8 in=13x12 filter=3x3 stride=2 pad=1 count_include_pad=no
// window_pool: threads=128,tile_h=1,tile_w=1,vector=2
//
// Idea       A thread computes 1 x 1 neighbouring results. It reads each row of pixels under them once, in packs of 2,
//            folds it along w for each of its columns, and folds that into every result whose window holds the row: windows that
//            overlap share loads and row sums, and a window costs the sum of its sides, not their product.
//
// Notation   y[n, c, o] = mean over f of x[n, c, o*step - offset + f*spread], positions outside x left out
//            n  batch element   2
//            c  channel         8
//            o  result          7 x 6
//            f  tap             3 x 3
//            x and y are [n][c][position]
//
// Mapping    block   128 threads in a row
//            thread  tiles along w, h (fastest first), then c, then n
//
// Numerics   fp32 sums, along w first; one division. A window without a position in x gives 0.

// fp32: storage and arithmetic are the same.
__device__ __forceinline__ float to_float(float v) { return v; }

template <typename T>
__device__ __forceinline__ T from_float(float v);

template <>
__device__ __forceinline__ float from_float<float>(float v) { return v; }

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

// The tap through which result `t` of a thread reads input `i` of the thread along one axis; negative if it does not.
template <int kStep, int kSpread, int kTaps>
__device__ __forceinline__ constexpr int tap_between(int t, int i) {
    const int distance = i - t * kStep - (kSpread < 0 ? (1 - kTaps) * kSpread : 0);
    return distance % kSpread == 0 && distance / kSpread < kTaps ? distance / kSpread : -1;
}

// How many of a window's kTaps positions, kSpread apart from `first` on, lie in [low, high).
template <int kTaps, int kSpread>
__device__ __forceinline__ int taps_between(int first, int low, int high) {
    const int before = first < low ? (low - first + kSpread - 1) / kSpread : 0;
    const int until = first < high ? (high - first + kSpread - 1) / kSpread : 0;
    return max(min(until, kTaps) - before, 0);
}

using in_t = float;
using out_t = float;
using offset_t = int;

constexpr int batch = 2;
constexpr int kChannels = 8;
constexpr int kOutH = 7, kSourceH = 13, kTapsH = 3;
constexpr int kStepH = 2, kOffsetH = 1, kSpreadH = 1;
constexpr int kOutW = 6, kSourceW = 12, kTapsW = 3;
constexpr int kStepW = 2, kOffsetW = 1, kSpreadW = 1;

// Strides, in elements.
constexpr offset_t kXBatch = 1248, kXChannel = 156, kYBatch = 336, kYChannel = 42;
constexpr offset_t kXH = 12, kYH = 6;
constexpr offset_t kXW = 1, kYW = 1;

// Tunables.
constexpr int kThreads = 128;
constexpr int kVector = 2;  // elements a load, along w
constexpr int kTileH = 1;  // results of a thread
constexpr int kTileW = 1;

constexpr int kLanes = 1;  // channels of a thread
constexpr int kTilesW = (kOutW + kTileW - 1) / kTileW;
constexpr int kTilesH = (kOutH + kTileH - 1) / kTileH;
constexpr int kLead = 1;  // pixels before a tile's first that make its packs aligned
constexpr int kSpan = (kLead + (kTileW - 1) * kStepW + (kTapsW - 1) * kSpreadW + kVector) / kVector * kVector;  // pixels of a row

__device__ __forceinline__ float fold(float a, float b) { return a + b; }
__device__ __forceinline__ float empty() { return 0.0f; }  // of a window without a position

extern "C" __global__ void __launch_bounds__(128)
avg_pool2d_f3x3_window_pool_n2c8i13x12_fp32_nchw_2bc31bd7(const float* __restrict__ x, float* y) {
    offset_t tile = static_cast<offset_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int ow = static_cast<int>(tile % kTilesW) * kTileW;
    tile /= kTilesW;
    const int oh = static_cast<int>(tile % kTilesH) * kTileH;
    tile /= kTilesH;
    const int c = static_cast<int>(tile % kChannels);
    tile /= kChannels;
    const int n = static_cast<int>(tile);
    if (n >= batch) return;
    x += n * kXBatch + c * kXChannel;

    // The first position of the first window.
    const int first_w = ow * kStepW - kOffsetW;
    const int first_h = oh * kStepH - kOffsetH;

    float result[kTileH][kTileW][kLanes];
    #pragma unroll
    for (int i = 0; i < kTileH * kTileW * kLanes; ++i) result[i / (kTileW * kLanes)][i / kLanes % kTileW][i % kLanes] = empty();

    #pragma unroll
    for (int fh = 0; fh < kTapsH; ++fh) {
        const int ih = first_h + fh * kSpreadH;
        const bool row_exists = static_cast<unsigned>(ih) < static_cast<unsigned>(kSourceH);
        const in_t* const row = x + ih * kXH;
        float along[kTileW][kLanes];
        #pragma unroll
        for (int i = 0; i < kTileW * kLanes; ++i) along[i / kLanes][i % kLanes] = empty();
        #pragma unroll
        for (int p = 0; p < kSpan; p += kVector) {
            // Rows are whole packs and tiles begin 1 pixels behind one, so that a pack lies in x or outside of it.
            const int iw = first_w - kLead + p;
            Pack<in_t, kVector> pixels;
            const bool exists = row_exists && static_cast<unsigned>(iw) < static_cast<unsigned>(kSourceW);
            if (exists) pixels = load_pack<kVector>(row + iw);
            #pragma unroll
            for (int v = 0; v < kVector; ++v) {
                #pragma unroll
                for (int j = 0; j < kTileW; ++j) {
                    if (p + v < kLead || tap_between<kStepW, kSpreadW, kTapsW>(j, p + v - kLead) < 0) continue;
                    along[j][0] = fold(along[j][0], exists ? to_float(pixels.lane[v]) : empty());
                }
            }
        }
        #pragma unroll
        for (int i = 0; i < kTileH; ++i) {
            #pragma unroll
            for (int j = 0; j < kTileW; ++j) {
                #pragma unroll
                for (int lane = 0; lane < kLanes; ++lane) result[i][j][lane] = fold(result[i][j][lane], along[j][lane]);
            }
        }
    }

    y += n * kYBatch + c * kYChannel;
    #pragma unroll
    for (int i = 0; i < kTileH; ++i) {
        const int count_h = taps_between<kTapsH, kSpreadH>(first_h + i * kStepH, 0, 13);
        #pragma unroll
        for (int j = 0; j < kTileW; ++j) {
            Pack<out_t, kLanes> pack;
            #pragma unroll
            for (int s = 0; s < kLanes; ++s) {
                const int count = count_h * taps_between<kTapsW, kSpreadW>(first_w + j * kStepW, 0, 12);
                pack.lane[s] = from_float<out_t>(count == 0 ? 0.0f : result[i][j][s] / static_cast<float>(count));
            }
            store_pack(y + (oh + i) * kYH + (ow + j) * kYW, pack);
        }
    }
}
