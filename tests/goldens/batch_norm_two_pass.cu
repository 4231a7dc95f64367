// training_batch_norm_two_pass_n4c12i13x12_fp32_nhwc_36634c68
// batch_norm n=4 c=12 in=13x12 mode=training activation=relu layout=nhwc
// batch_norm_two_pass: threads_channel=4,threads_item=64,vector=1,unroll=4,parts=16
//
// Idea       First kernel: each block takes the sum of a part of its channels and the squared distances from that part's own
//            mean. Second kernel: each block combines all parts of its channels, always in the same order, and normalises
//            its part and activation fused. It begins with the blocks that the first kernel ended with, since L2 holds what
//            was read last.
// Source     Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances, 1979.
//
// Notation   y = (x - mean) / sqrt(variance + eps) * scale + bias; statistics of a channel are over n and s
//            n  batch element   4
//            c  channel         12
//            s  position        156
//            x and y are [n][s][c]
//            item  1 neighbouring channels at one (n, s): one load
//            part  one of 16 runs of a channel's items
//
// Mapping    block   4 threads along the channels x 64 along the items of a part, in both kernels
//            thread  4 items at a time of 1 channel
//            grid.x  blocks of channels (fastest), then parts
//
// Shared     sums of the block's warps
//
// Numerics   fp32. A thread takes the mean of the items that it holds, then their squared distances from it; sets of values with
//            sums s, s' and counts n, n' are combined by q + q' + (s/n - s'/n')^2 n n' / (n + n'). Sums themselves are added
//            up, so that an infinity in x gives an infinite mean. The same bits on every run.

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
constexpr int kThreadsChannel = 4, kThreadsItem = 64;
constexpr int kVector = 1;  // elements a load

constexpr int kLanes = kVector;  // channels of a thread: those of a pack
constexpr int kItemValues = 1;  // of a channel in an item
constexpr int kImageItems = kPositions;
constexpr int kItemStep = kThreadsChannel;  // threads from one item to the next
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
    at.thread_channel = thread % kThreadsChannel;
    at.thread_item = thread / kThreadsChannel;
    at.channel = channel_block * kBlockChannels + at.thread_channel * kLanes;
    at.exists = at.channel < kChannels;
    return at;
}

// Where an item of a channel begins in x, y and the residual.
__device__ __forceinline__ offset_t offset_of(int channel, int item) {
    return static_cast<offset_t>(item) * kChannels + channel;
}

// Which of a thread's channels element v of a pack belongs to.
__device__ __forceinline__ constexpr int lane_of(int v) { return kLanes > 1 ? v : 0; }

// y = activation((x - mean) * factor + bias) for the channels of a thread, factor being scale / sqrt(variance + eps).
struct Normalise {
    float mean[kLanes], factor[kLanes], bias[kLanes];

    __device__ __forceinline__ void store(out_t* y, const Pack<in_t, kVector>& x) const {
        Pack<out_t, kVector> result;
        #pragma unroll
        for (int v = 0; v < kVector; ++v) {
            const int lane = lane_of(v);
            float value = fma_acc(to_float(x.lane[v]) - mean[lane], factor[lane], bias[lane]);
            value = activate<kRelu>(value, 0.01f);
            result.lane[v] = from_float<out_t>(value);
        }
        store_pack(y, result);
    }
};

// The items of a part, the last of which may be shorter or empty.
constexpr int kParts = 16;
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
    const Normalise& normalise, const Place& at, const Part& part, const in_t* __restrict__ x, out_t* y
) {
    for (int first = part.begin + at.thread_item; first < part.end; first += kUnroll * kThreadsItem) {
        Pack<in_t, kVector> held[kUnroll];
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            const int item = first + j * kThreadsItem;
            if (item >= part.end) continue;
            held[j] = load_pack<kVector>(x + offset_of(at.channel, item));
        }
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            const int item = first + j * kThreadsItem;
            if (item < part.end) normalise.store(y + offset_of(at.channel, item), held[j]);
        }
    }
}

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

// partial[part][sum, squares][c]
extern "C" __global__ void __launch_bounds__(256)
training_batch_norm_two_pass_statistics_n4c12i13x12_fp32_nhwc_36634c68(const float* __restrict__ x, float* __restrict__ partial) {
    CONVGEN_SHARED(shared);
    float* const sums = reinterpret_cast<float*>(shared);
    const int index = static_cast<int>(blockIdx.x) / kChannelBlocks;
    const Place at = place(static_cast<int>(blockIdx.x) % kChannelBlocks);
    const Part part = part_of(index, batch * kImageItems);
    const int end = at.exists ? part.end : part.begin;

    float count = 0.0f, sum[kLanes] = {}, squares[kLanes] = {};
    for (int first = part.begin + at.thread_item; first < end; first += kUnroll * kThreadsItem) {
        Pack<in_t, kVector> held[kUnroll];
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            const int item = first + j * kThreadsItem;
            if (item < end) held[j] = load_pack<kVector>(x + offset_of(at.channel, item));
        }
        const int found = min(kUnroll, (end - first + kThreadsItem - 1) / kThreadsItem);
        const float more = static_cast<float>(found * kItemValues);
        float more_sum[kLanes] = {};
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            if (j >= found) break;
            #pragma unroll
            for (int v = 0; v < kVector; ++v) more_sum[lane_of(v)] += to_float(held[j].lane[v]);
        }
        const float per_more = 1.0f / more;
        float more_mean[kLanes];
        #pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) more_mean[lane] = more_sum[lane] * per_more;
        #pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
            if (j >= found) break;
            #pragma unroll
            for (int v = 0; v < kVector; ++v) {
                const float distance = to_float(held[j].lane[v]) - more_mean[lane_of(v)];
                squares[lane_of(v)] = fma_acc(distance, distance, squares[lane_of(v)]);
            }
        }
        if (count > 0.0f) {
            const float per_count = 1.0f / count, weight = count * more / (count + more);
            #pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                const float distance = sum[lane] * per_count - more_mean[lane];
                squares[lane] = fma_acc(distance * distance, weight, squares[lane]);
            }
        }
        count += more;
        #pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) sum[lane] += more_sum[lane];
    }

    float total[kLanes];
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) total[lane] = sum[lane];
    block_sum<kThreadsItem, kItemStep, kThreadsChannel>(total, at.thread_item, at.thread_channel, sums);
    if (count > 0.0f) {
        const float per_count = 1.0f / count, per_all = 1.0f / static_cast<float>((part.end - part.begin) * kItemValues);
        #pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const float distance = sum[lane] * per_count - total[lane] * per_all;
            squares[lane] = fma_acc(distance * distance, count, squares[lane]);
        }
    }
    block_sum<kThreadsItem, kItemStep, kThreadsChannel>(squares, at.thread_item, at.thread_channel, sums);
    if (!at.exists || at.thread_item > 0) return;
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        partial[2 * index * kChannels + at.channel + lane] = total[lane];
        partial[(2 * index + 1) * kChannels + at.channel + lane] = squares[lane];
    }
}

extern "C" __global__ void __launch_bounds__(256)
training_batch_norm_two_pass_n4c12i13x12_fp32_nhwc_36634c68(const float* __restrict__ partial, const float* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ bias, const float* mean, const float* var, float* y, float* __restrict__ save_mean, float* __restrict__ save_inv_std, float* running_mean, float* running_var) {
    CONVGEN_SHARED(shared);
    float* const sums = reinterpret_cast<float*>(shared);
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    const int index = block / kChannelBlocks;
    const Place at = place(block % kChannelBlocks);
    const int items = batch * kImageItems;
    const float count = static_cast<float>(batch) * kPositions;

    Normalise normalise;
    float sum[kLanes] = {}, squares[kLanes] = {};
    const int last = at.exists ? kParts : 0;
    for (int part = at.thread_item; part < last; part += kThreadsItem) {
        #pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) sum[lane] += partial[2 * part * kChannels + at.channel + lane];
    }
    block_sum<kThreadsItem, kItemStep, kThreadsChannel>(sum, at.thread_item, at.thread_channel, sums);
    #pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) normalise.mean[lane] = sum[lane] / count;
    for (int part = at.thread_item; part < last; part += kThreadsItem) {
        const Part other = part_of(part, items);
        if (other.end == other.begin) break;
        const float values = static_cast<float>((other.end - other.begin) * kItemValues);
        #pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const float distance = partial[2 * part * kChannels + at.channel + lane] / values - normalise.mean[lane];
            squares[lane] += fma_acc(distance * distance, values, partial[(2 * part + 1) * kChannels + at.channel + lane]);
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
        if (index == 0 && at.thread_item == 0) statistics.store(channel, normalise.mean[lane], variance, inv_std, mean[channel], var[channel], count);
    }
    normalise_part(normalise, at, part_of(index, items), x, y);
}
