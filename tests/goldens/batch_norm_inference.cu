// inference_batch_norm_inference_n4c12i13x12_fp32_nchw_e4208a53
// batch_norm n=4 c=12 in=13x12 residual=yes activation=relu
// batch_norm_inference: threads_channel=1,threads_item=256,vector=4,unroll=4,parts=1
//
// Idea       A thread stays with its channels: it works out their factor once and streams a part of their items through one
//            fused multiply-add, the residual and the activation. Memory sets the time: x in, y out, nothing else.
// Source     Ioffe, Szegedy: Batch Normalization, 2015, algorithm 2.
//
// Notation   y = (x - mean) / sqrt(var + eps) * scale + bias
//            n  batch element   4
//            c  channel         12
//            s  position        156
//            x and y are [n][c][s]
//            item  4 neighbouring positions of one (n, c): one load
//            part  one of 1 runs of a channel's items
//
// Mapping    block   1 threads along the channels x 256 along the items of a part
//            thread  4 items at a time of 1 channel
//            grid.x  blocks of channels (fastest), then parts
//
// Numerics   fp32; the mean is subtracted first, so that nothing cancels that did not in x.

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

using in_t = float;
using out_t = float;
using offset_t = int;

constexpr int batch = 4;
constexpr int kChannels = 12, kPositions = 156;

// Tunables.
constexpr int kThreadsChannel = 1, kThreadsItem = 256;
constexpr int kVector = 4;  // elements a load

constexpr int kLanes = 1;  // channels of a thread
constexpr int kItemValues = kVector;  // of a channel in an item
constexpr int kImageItems = kPositions / kVector;
constexpr int kItemStep = 1;  // threads from one item to the next
constexpr int kBlockChannels = kThreadsChannel * kLanes;
constexpr int kChannelBlocks = (kChannels + kBlockChannels - 1) / kBlockChannels;

// The channels of a thread, the first of them, and its first item among those of the block.
struct Place {
    int thread_channel, thread_item;
    int channel;
    bool exists;
};

__device__ __forceinline__ Place place(int channel_block) {
    const int thread = static_cast<int>(threadIdx.x);
    Place at;
    at.thread_channel = thread / kThreadsItem;
    at.thread_item = thread % kThreadsItem;
    at.channel = channel_block * kBlockChannels + at.thread_channel * kLanes;
    at.exists = at.channel < kChannels;
    return at;
}

// Where an item of a channel begins in x, y and the residual.
__device__ __forceinline__ offset_t offset_of(int channel, int item) {
    const int image = item / kImageItems, within = item % kImageItems;
    return (static_cast<offset_t>(image) * kChannels + channel) * kPositions + within * kVector;
}

// Which of a thread's channels element v of a pack belongs to.
__device__ __forceinline__ constexpr int lane_of(int v) { return kLanes > 1 ? v : 0; }

// y = activation((x - mean) * factor + bias + residual) for the channels of a thread, factor being scale / sqrt(variance + eps).
struct Normalise {
    float mean[kLanes], factor[kLanes], bias[kLanes];

    __device__ __forceinline__ void store(out_t* y, const Pack<in_t, kVector>& x, const Pack<in_t, kVector>& residual) const {
        Pack<out_t, kVector> result;
        #pragma unroll
        for (int v = 0; v < kVector; ++v) {
            const int lane = lane_of(v);
            float value = fma_acc(to_float(x.lane[v]) - mean[lane], factor[lane], bias[lane]);
            value += to_float(residual.lane[v]);
            value = activate<kRelu>(value, 0.01f);
            result.lane[v] = from_float<out_t>(value);
        }
        store_pack(y, result);
    }
};

// The items of a part, the last of which may be shorter or empty.
constexpr int kParts = 1;
constexpr int kUnroll = 4;  // items a thread loads together

struct Part {
    int begin, end;
};

__device__ __forceinline__ Part part_of(int part, int items) {
    const int most = (items + kParts - 1) / kParts;
    const int begin = min(part * most, items);
    return {begin, min(begin + most, items)};
}

// Normalise a part's items of the thread's channels.
__device__ __forceinline__ void normalise_part(
    const Normalise& normalise, const Place& at, const Part& part, const in_t* __restrict__ x, const in_t* residual, out_t* y
) {
    for (int first = part.begin + at.thread_item; first < part.end; first += kUnroll * kThreadsItem) {
        Pack<in_t, kVector> held[kUnroll], added[kUnroll];
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            const int item = first + j * kThreadsItem;
            if (item >= part.end) continue;
            held[j] = load_pack<kVector>(x + offset_of(at.channel, item));
            added[j] = load_pack<kVector>(residual + offset_of(at.channel, item));
        }
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            const int item = first + j * kThreadsItem;
            if (item < part.end) normalise.store(y + offset_of(at.channel, item), held[j], added[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
inference_batch_norm_inference_n4c12i13x12_fp32_nchw_e4208a53(const float* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ bias, const float* __restrict__ mean, const float* __restrict__ var, const float* __restrict__ residual, float* y) {
    const Place at = place(static_cast<int>(blockIdx.x) % kChannelBlocks);
    if (!at.exists) return;
    Normalise normalise;
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        const int channel = at.channel + lane;
        normalise.mean[lane] = mean[channel];
        normalise.factor[lane] = 1.0f / sqrtf(var[channel] + 1e-05f) * scale[channel];
        normalise.bias[lane] = bias[channel];
    }
    normalise_part(normalise, at, part_of(static_cast<int>(blockIdx.x) / kChannelBlocks, batch * kImageItems), x, residual, y);
}
