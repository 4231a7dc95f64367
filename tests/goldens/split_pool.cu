// avg_pool2d_f7x6_split_pool_n2c8i14x12_fp32_nhwc_8b4d8b14
// avg_pool2d n=2 c=8 in=14x12 filter=7x6 pad=1 count_include_pad=no layout=nhwc
// split_pool: threads_result=8,threads_window=32,vector=4,unroll=4
//
// Idea       For large windows and few results: 32 threads share a window. Each folds every 32-th of its taps,
//            then the block folds what they have. Neighbouring threads read neighbouring channels.
//
// Notation   y[n, c, o] = mean over f of x[n, c, o*step - offset + f*spread], positions outside x left out
//            n  batch element   2
//            c  channel         8
//            o  result          2 x 2
//            f  tap             7 x 6
//            x and y are [n][position][c]
//
// Mapping    block   8 results of 4 channels each x 32 threads of a window
//            thread  4 taps at a time
//            grid.x  channels fastest, then o, then n
//
// Shared     what each warp has folded
//
// Numerics   fp32 sums, of a thread, then of a warp by butterflies, then of its warps in order; one division. The same bits on
//            every run. A window without a position in x gives 0.

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

// The block's dynamic shared memory, as one buffer.
#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

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
constexpr int kOutH = 2, kSourceH = 14, kTapsH = 7;
constexpr int kStepH = 7, kOffsetH = 1, kSpreadH = 1;
constexpr int kOutW = 2, kSourceW = 12, kTapsW = 6;
constexpr int kStepW = 6, kOffsetW = 1, kSpreadW = 1;

// Strides, in elements.
constexpr offset_t kXBatch = 1344, kXChannel = 1, kYBatch = 32, kYChannel = 1;
constexpr offset_t kXH = 96, kYH = 16;
constexpr offset_t kXW = 8, kYW = 8;

// Tunables.
constexpr int kThreadsResult = 8, kThreadsWindow = 32;
constexpr int kVector = 4;  // elements a load
constexpr int kUnroll = 4;  // loads together

constexpr int kLanes = 4;  // channels of a thread
constexpr int kPacks = kTapsW * kTapsH;  // loads of a window
constexpr int kStep = 8;  // threads from one of a window to its next

__device__ __forceinline__ float fold(float a, float b) { return a + b; }
__device__ __forceinline__ float empty() { return 0.0f; }  // of a window without a position

extern "C" __global__ void __launch_bounds__(256)
avg_pool2d_f7x6_split_pool_n2c8i14x12_fp32_nhwc_8b4d8b14(const float* __restrict__ x, float* y) {
    CONVGEN_SHARED(shared);
    float* const folded = reinterpret_cast<float*>(shared);
    const int thread = static_cast<int>(threadIdx.x);
    const int of_block = thread % kThreadsResult, of_window = thread / kThreadsResult;
    offset_t at = static_cast<offset_t>(blockIdx.x) * kThreadsResult + of_block;
    const int c = static_cast<int>(at % (kChannels / kVector)) * kVector;
    at /= kChannels / kVector;
    const int ow = static_cast<int>(at % kOutW);
    at /= kOutW;
    const int oh = static_cast<int>(at % kOutH);
    at /= kOutH;
    const int n = static_cast<int>(at);
    const int packs = n < batch ? kPacks : 0;
    x += n * kXBatch + c * kXChannel;
    const int first_h = oh * kStepH - kOffsetH;
    const int first_w = ow * kStepW - kOffsetW;

    float result[kLanes];
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = empty();
    #pragma unroll 1
    for (int p0 = of_window; p0 < packs; p0 += kUnroll * kThreadsWindow) {
        Pack<in_t, kVector> pixels[kUnroll];
        bool seen[kUnroll];
        #pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            const int tap = (p0 + i * kThreadsWindow);
            const int ih = first_h + tap / kTapsW * kSpreadH;
            const int iw = first_w + tap % kTapsW * kSpreadW;
            seen[i] = p0 + i * kThreadsWindow < packs && static_cast<unsigned>(ih) < static_cast<unsigned>(kSourceH) && static_cast<unsigned>(iw) < static_cast<unsigned>(kSourceW);
            if (seen[i]) pixels[i] = load_pack<kVector>(x + ih * kXH + iw * kXW);
        }
        #pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            if (!seen[i]) continue;
            #pragma unroll
            for (int v = 0; v < kVector; ++v) result[kLanes > 1 ? v : 0] = fold(result[kLanes > 1 ? v : 0], to_float(pixels[i].lane[v]));
        }
    }

    // The threads of a window: within a warp by butterflies, then over the warps in order.
    constexpr int kReach = 32 / kStep;
    constexpr int kInWarp = kReach < 1 ? 1 : kReach < kThreadsWindow ? kReach : kThreadsWindow;
    constexpr int kGroups = kThreadsWindow / kInWarp;
    #pragma unroll
    for (int distance = 1; distance < kInWarp; distance *= 2) {
        #pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            result[lane] = fold(result[lane], __shfl_xor_sync(0xffffffffu, result[lane], distance * kStep));
        }
    }
    if constexpr (kGroups > 1) {
        if (of_window % kInWarp == 0) {
            #pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) folded[(of_window / kInWarp * kLanes + lane) * kThreadsResult + of_block] = result[lane];
        }
        __syncthreads();
        if (of_window == 0) {
            #pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                for (int group = 1; group < kGroups; ++group) result[lane] = fold(result[lane], folded[(group * kLanes + lane) * kThreadsResult + of_block]);
            }
        }
    }
    if (of_window > 0 || n >= batch) return;

    const int count = taps_between<kTapsH, kSpreadH>(first_h, 0, 14) * taps_between<kTapsW, kSpreadW>(first_w, 0, 12);
    Pack<out_t, kLanes> pack;
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        pack.lane[lane] = from_float<out_t>(count == 0 ? 0.0f : result[lane] / static_cast<float>(count));
    }
    store_pack(y + n * kYBatch + c * kYChannel + oh * kYH + ow * kYW, pack);
}
