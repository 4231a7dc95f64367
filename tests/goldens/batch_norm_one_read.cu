// training_batch_norm_one_read_n4c12i13x12_fp32_nchw_36bf8464
// batch_norm n=4 c=12 in=13x12 mode=training residual=yes activation=relu
// batch_norm_one_read: threads_channel=1,threads_item=256,vector=4,home=registers
//
// Idea       A block keeps all of its channels in registers from the first use to the last, so that x makes one trip
//            from memory and y one trip back: mean, variance (a second pass over what is held), normalisation, residual, activation.
// Source     Ioffe, Szegedy: Batch Normalization, 2015, algorithm 1.
//
// Notation   y = (x - mean) / sqrt(variance + eps) * scale + bias; statistics of a channel are over n and s
//            n  batch element   4
//            c  channel         12
//            s  position        156
//            x and y are [n][c][s]
//            item  4 neighbouring positions of one (n, c): one load
//
// Mapping    block   1 threads along the channels x 256 along the items
//            thread  1 items of 1 channel
//            grid.x  blocks of channels
//
// Shared     sums of the block's warps, then of its channels
//
// Numerics   fp32 sums, first of a thread, then of a warp by butterflies, then of its warps in order; the variance is the mean of
//            the squared distances from the rounded mean. The same bits on every run.

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

constexpr int kThreads = kThreadsChannel * kThreadsItem;
constexpr int kItems = 1;  // of a thread
constexpr int kTogether = 4;  // of the residual's items

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

// What a channel's mean and biased variance become: the outputs of training.
struct Statistics {
    float* save_mean;
    float* save_inv_std;
    float* running_mean;
    float* running_var;

    __device__ __forceinline__ void store(int channel, float mean, float variance, float inv_std, float old_mean, float old_var, float count) const {
        save_mean[channel] = mean;
        save_inv_std[channel] = inv_std;
        running_mean[channel] = 0.9f * old_mean + 0.1f * mean;
        // The running variance is of the unbiased one.
        running_var[channel] = 0.9f * old_var + 0.1f * (variance * (count / (count - 1.0f)));
    }
};

extern "C" __global__ void __launch_bounds__(256)
training_batch_norm_one_read_n4c12i13x12_fp32_nchw_36bf8464(const float* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ bias, const float* mean, const float* var, const float* __restrict__ residual, float* y, float* __restrict__ save_mean, float* __restrict__ save_inv_std, float* running_mean, float* running_var) {
    CONVGEN_SHARED(shared);
    float* const sums = reinterpret_cast<float*>(shared);
    const Place at = place(static_cast<int>(blockIdx.x));
    const int end = at.exists ? batch * kImageItems : 0;
    const float count = static_cast<float>(batch) * kPositions;

    Pack<in_t, kVector> held[kItems];
    #pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const int item = at.thread_item + j * kThreadsItem;
        if (item < end) held[j] = load_pack<kVector>(x + offset_of(at.channel, item));
    }

    float sum[kLanes] = {};
    #pragma unroll
    for (int j = 0; j < kItems; ++j) {
        if (at.thread_item + j * kThreadsItem >= end) continue;
        #pragma unroll
        for (int v = 0; v < kVector; ++v) sum[lane_of(v)] += to_float(held[j].lane[v]);
    }
    block_sum<kThreadsItem, kItemStep, kThreadsChannel>(sum, at.thread_item, at.thread_channel, sums);

    Normalise normalise;
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) normalise.mean[lane] = sum[lane] / count;

    float squares[kLanes] = {};
    #pragma unroll
    for (int j = 0; j < kItems; ++j) {
        if (at.thread_item + j * kThreadsItem >= end) continue;
        #pragma unroll
        for (int v = 0; v < kVector; ++v) {
            const float distance = to_float(held[j].lane[v]) - normalise.mean[lane_of(v)];
            squares[lane_of(v)] = fma_acc(distance, distance, squares[lane_of(v)]);
        }
    }
    block_sum<kThreadsItem, kItemStep, kThreadsChannel>(squares, at.thread_item, at.thread_channel, sums);
    if (!at.exists) return;

    const Statistics statistics{save_mean, save_inv_std, running_mean, running_var};
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        const int channel = at.channel + lane;
        const float variance = squares[lane] / count;
        const float inv_std = 1.0f / sqrtf(variance + 1e-05f);
        normalise.factor[lane] = inv_std * scale[channel];
        normalise.bias[lane] = bias[channel];
        if (at.thread_item == 0) statistics.store(channel, normalise.mean[lane], variance, inv_std, mean[channel], var[channel], count);
    }
    // A few at a time, since y may be the residual itself: a load cannot pass a store.
    #pragma unroll
    for (int j0 = 0; j0 < kItems; j0 += kTogether) {
        Pack<in_t, kVector> added[kTogether];
        #pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const int item = at.thread_item + (j0 + i) * kThreadsItem;
            if (j0 + i < kItems && item < end) added[i] = load_pack<kVector>(residual + offset_of(at.channel, item));
        }
        #pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const int j = j0 + i, item = at.thread_item + j * kThreadsItem;
            if (j < kItems && item < end) normalise.store(y + offset_of(at.channel, item), held[j], added[i]);
        }
    }
}
