// conv2d_fprop_direct_n2c8i13x11_k12f3x3p1_fp32_nchw_dd0e6138
// conv2d n=2 c=8 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu
// direct: along_x=column,threads_channel=1,threads_column=32,tile_b=1,tile_channel=1,tile_position=1,vector=1,filter=global,input=global,split_q=1,split_taps=1
//
// Idea       One thread computes a small block of results and keeps their sums in registers. It gathers its inputs
//            from global memory, where caches supply the reuse; nothing is staged and nobody waits.
//            With every tile at 1 and both operands in global memory this is the textbook kernel.
//
// Notation   y[b, g, m, o] = sum over q, f of x[b, g, q, (o*step - offset + f*spread) / divisor] * w[g, m, q, f]
//            x x   w w   y y   (the roles that make fprop this sum)
//            b  batch element     2
//            g  group             1
//            m  result channel    12 a group
//            q  summed channel    8 a group
//            o  result position   13 x 11
//            f  tap               3 x 3
//
// Mapping    block   1 channel tiles x 32 column tiles, columns along threadIdx.x
//            thread  1 batch elements, one after the other; 1 channels x 1 positions along h at a time
//            grid.x  channel blocks (fastest), then column blocks; a column is (b, o)
//            grid.y  1 parts of q x 1 parts of the taps
//
// Numerics   fp32 FMA, q outermost, taps of h innermost; a term outside x is the border's value times its weight.

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

// Where a padded position reads along one axis.
enum Border { kZeros, kReplicate, kReflect, kCircular };

// An index into [0, kExtent), if it exists. With a border of zeros the index is the position itself, existing or not,
// so that neighbouring taps stay a constant distance apart and their loads differ by an immediate.
struct Source {
    int index;
    bool exists;
};

template <int kExtent, int kDivisor, Border kBorder>
__device__ __forceinline__ Source source(int position) {
    bool exists = true;
    if constexpr (kDivisor > 1) {
        exists = position % kDivisor == 0;
        position /= kDivisor;
    }
    if constexpr (kBorder == kReplicate) {
        position = min(max(position, 0), kExtent - 1);
    } else if constexpr (kBorder == kReflect) {
        position = position < 0 ? -position : position;
        position = position >= kExtent ? 2 * (kExtent - 1) - position : position;
    } else if constexpr (kBorder == kCircular) {
        position = position < 0 ? position + kExtent : position;
        position = position >= kExtent ? position - kExtent : position;
    }
    return {position, exists && static_cast<unsigned>(position) < static_cast<unsigned>(kExtent)};
}

// The same as one number, negative where there is no index.
template <int kExtent, int kDivisor, Border kBorder>
__device__ __forceinline__ int source_index(int position) {
    const Source found = source<kExtent, kDivisor, kBorder>(position);
    return found.exists ? found.index : -1;
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

constexpr int batch = 2;
constexpr int kGroups = 1;
constexpr int kM = 12;
constexpr int reduction = 8;  // q runs over it
constexpr int kOutH = 13, kSourceH = 13, kTapsH = 3;
constexpr int kStepH = 1, kOffsetH = 1, kSpreadH = 1, kDivisorH = 1;
constexpr int kOutW = 11, kSourceW = 11, kTapsW = 3;
constexpr int kStepW = 1, kOffsetW = 1, kSpreadW = 1, kDivisorW = 1;
constexpr Border kBorder = kZeros;

// Strides, in elements.
constexpr offset_t kXBatch = 1144, kXGroup = 1144, kXQ = 143;
constexpr offset_t kWGroup = 864, kWM = 72, kWQ = 9;
constexpr offset_t kYBatch = 1716, kYGroup = 1716, kYM = 143;
constexpr offset_t kXH = 11, kWH = 3, kYH = 11;
constexpr offset_t kXW = 1, kWW = 1, kYW = 1;

// Tunables.
constexpr int kThreadsChannel = 1, kThreadsColumn = 32;
constexpr int kTileB = 1, kTileG = 1, kTileM = 1, kTileO = 1;
constexpr int kVector = 1;  // elements of q a load

constexpr int kTilesM = (kM + kTileM - 1) / kTileM;
constexpr int kTilesO = (kOutH + kTileO - 1) / kTileO;
constexpr int kChannelTiles = (kGroups + kTileG - 1) / kTileG * kTilesM;
constexpr int kChannelBlocks = (kChannelTiles + kThreadsChannel - 1) / kThreadsChannel;

// What follows the accumulator, in this order: bias, activation.
struct Epilogue {
    const float* bias;

    // `channel` of the result and `offset` of the element in y; rounding to y's type is the caller's.
    __device__ __forceinline__ float apply(const out_t* y, offset_t offset, int channel, float value) const {
        value += to_float(bias[channel]);
        value = activate<kRelu>(value, 0.01f);
        return value;
    }
};

extern "C" __global__ void __launch_bounds__(32)
conv2d_fprop_direct_n2c8i13x11_k12f3x3p1_fp32_nchw_dd0e6138(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* y) {
    const int channel_tile = static_cast<int>(blockIdx.x % kChannelBlocks) * kThreadsChannel + threadIdx.y;
    const int g0 = channel_tile / kTilesM * kTileG;
    const int m0 = channel_tile % kTilesM * kTileM;

    offset_t column = static_cast<offset_t>(blockIdx.x / kChannelBlocks) * kThreadsColumn + threadIdx.x;
    const int ow = static_cast<int>(column % kOutW);
    column /= kOutW;
    const int oh = static_cast<int>(column % kTilesO) * kTileO;
    column /= kTilesO;
    if (channel_tile >= kChannelTiles || column * kTileB >= batch) return;
    const int first_batch = static_cast<int>(column) * kTileB;
    const int last_batch = min(first_batch + kTileB, batch);

    constexpr int q_begin = 0;
    const int q_end = reduction;
    const Epilogue epilogue{bias};

    for (int b = first_batch; b < last_batch; ++b) {
        float acc[kTileG][kTileM][kTileO] = {};
        const in_t* const x_of_thread = x + b * kXBatch + g0 * kXGroup;
        const in_t* const w_of_thread = w + g0 * kWGroup + m0 * kWM;

        for (int q = q_begin; q < q_end; q += kVector) {
            #pragma unroll
            for (int fw = 0; fw < kTapsW; ++fw) {
                const Source iw = source<kSourceW, kDivisorW, kBorder>(ow * kStepW - kOffsetW + fw * kSpreadW);
                #pragma unroll
                for (int fh = 0; fh < kTapsH; ++fh) {
                    float xs[kTileO][kTileG][kVector];
                    #pragma unroll
                    for (int i = 0; i < kTileO; ++i) {
                        const Source ih = source<kSourceH, kDivisorH, kBorder>((oh + i) * kStepH - kOffsetH + fh * kSpreadH);
                        const bool inside = ih.exists && iw.exists;
                        const in_t* const at = x_of_thread + q * kXQ + ih.index * kXH + iw.index * kXW;
                        #pragma unroll
                        for (int g = 0; g < kTileG; ++g) xs[i][g][0] = inside ? to_float(at[g * kXGroup]) : 0.0f;
                    }
                    #pragma unroll
                    for (int g = 0; g < kTileG; ++g) {
                        #pragma unroll
                        for (int m = 0; m < kTileM; ++m) {
                            float ws[kVector];
                            const in_t* const at = w_of_thread + g * kWGroup + m * kWM + q * kWQ + fh * kWH + fw * kWW;
                            #pragma unroll
                            for (int v = 0; v < kVector; ++v) ws[v] = to_float(at[v * kWQ]);
                            #pragma unroll
                            for (int j = 0; j < kTileO; ++j) {
                                #pragma unroll
                                for (int v = 0; v < kVector; ++v) acc[g][m][j] = fma_acc(xs[j][g][v], ws[v], acc[g][m][j]);
                            }
                        }
                    }
                }
            }
        }

        const offset_t first = b * kYBatch + g0 * kYGroup + m0 * kYM + oh * kYH + ow * kYW;
        #pragma unroll
        for (int g = 0; g < kTileG; ++g) {
            #pragma unroll
            for (int m = 0; m < kTileM; ++m) {
                if (g0 + g >= kGroups || m0 + m >= kM) continue;
                const offset_t row = first + g * kYGroup + m * kYM;
                #pragma unroll
                for (int j = 0; j < kTileO; ++j) {
                    if (oh + j >= kOutH) continue;
                    const offset_t offset = row + j * kYH;
                    y[offset] = from_float<out_t>(epilogue.apply(y, offset, (g0 + g) * kM + m0 + m, acc[g][m][j]));
                }
            }
        }
    }
}
