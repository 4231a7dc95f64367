// conv2d_fprop_halo_tiled_n2c8i13x11_k12f3x3p1_fp32_nchw_2a14bc5c
// conv2d n=2 c=8 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu
// halo_tiled: threads_x=16,threads_y=8,threads_channel=2,tile_w=1,tile_h=1,tile_d=1,tile_channel=1,chunk=8,vector=1,filter=shared,min_blocks=1
//
// Idea       The block copies the input it needs, its tile of results plus a halo of taps, into shared memory once;
//            then every thread computes a small block of results from there, row by row in registers.
//            A pixel leaves global memory once a block instead of once a tap: with O x O results of a (2r+1) x (2r+1)
//            filter the tile is reused O^2 (2r+1)^2 / (O+2r)^2 times, and FLOP per byte of fp32 input grow with O
//            towards (2r+1)^2 / 2. Here 6.4 FLOP a byte of input.
// Source     Kirk, Hwu: Programming Massively Parallel Processors, chapter on convolution (tiles with halo cells),
//            there one thread an element of the tile; here the loading threads all compute afterwards.
//
// Notation   y[b, g, m, o] = sum over q, f of x[b, g, q, o*step - offset + f*spread] * w[g, m, q, f]
//            x x   w w   y y   (the roles that make fprop this sum)
//            b  batch element     2
//            g  group             1
//            m  result channel    12 a group
//            q  summed channel    8 a group
//            o  result position   13 x 11
//            f  tap               3 x 3
//
// Mapping    block   2 channels x 8 x 16 positions of one batch element
//            thread  1 channels x 1 x 1 positions; threadIdx.x along w, y along h, z along channels
//            grid.x  channel blocks (fastest), then tiles, then batch elements
//
// Shared     one buffer, one barrier
//            tile    [8 planes: g, q][10][18, rows 18 apart] fp32, 5760 bytes
//                    <- 0 to align -><- halo -><- 16 results' own pixels -><- halo ->
//            filter  [2 channels][8 q][3][4] fp32, 768 bytes
//
// Numerics   fp32 FMA, one q after the other; a term outside x is the border's value times its weight.

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

// The tap through which result `t` of a thread reads input `i` of the thread along one axis; negative if it does not.
template <int kStep, int kSpread, int kTaps>
__device__ __forceinline__ constexpr int tap_between(int t, int i) {
    const int distance = i - t * kStep - (kSpread < 0 ? (1 - kTaps) * kSpread : 0);
    return distance % kSpread == 0 && distance / kSpread < kTaps ? distance / kSpread : -1;
}

// The block's dynamic shared memory, as one buffer.
#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

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

constexpr int kGroups = 1, kM = 12, kQ = 8;
constexpr int kOutH = 13, kSourceH = 13, kTapsH = 3;
constexpr int kStepH = 1, kOffsetH = 1, kSpreadH = 1;
constexpr int kOutW = 11, kSourceW = 11, kTapsW = 3;
constexpr int kStepW = 1, kOffsetW = 1, kSpreadW = 1;
constexpr Border kBorder = kZeros;

// Strides, in elements.
constexpr offset_t kXBatch = 1144, kXGroup = 1144, kXQ = 143;
constexpr offset_t kWGroup = 864, kWM = 72, kWQ = 9;
constexpr offset_t kYBatch = 1716, kYGroup = 1716, kYM = 143;
constexpr offset_t kXH = 11, kWH = 3, kYH = 11;
constexpr offset_t kXW = 1, kWW = 1, kYW = 1;

// Tunables.
constexpr int kThreadsX = 16, kThreadsY = 8, kThreadsChannel = 2;
constexpr int kTileM = 1, kTileH = 1, kTileW = 1;  // results of a thread
constexpr int kChunk = 8;  // summed channels between two barriers
constexpr int kVector = 1;  // elements a load from global memory brings
constexpr int kRead = 1;  // elements a load from shared memory brings

// The block's results, and the pixels they read.
constexpr int kThreads = kThreadsX * kThreadsY * kThreadsChannel;
constexpr int kBlockG = 1, kBlockM = 2;
constexpr int kGroupBlocks = (kGroups + kBlockG - 1) / kBlockG, kMBlocks = (kM + kBlockM - 1) / kBlockM;
constexpr int kBlockH = 8, kBlocksH = 2, kSpanH = 10, kReadsH = 3;  // reads: of one thread
constexpr int kBlockW = 16, kBlocksW = 1, kReadsW = 3;  // reads: of one thread
constexpr int kSegment = 3;  // taps of a row worked on at a time
constexpr int kLead = 0;  // columns ahead of the first that is needed, so that vector loads are aligned
constexpr int kSkip = 0;  // those of them that a thread's first vector read brings too
constexpr int kColumns = 18;  // columns loaded
constexpr int kPitch = 18;  // columns from one row to the next, padded where that spares bank conflicts
constexpr int kPlane = 180;  // elements from one plane of the tile to the next
constexpr int kPlanes = kBlockG * kChunk;
constexpr int kRows = kSpanH;  // of a plane
constexpr int kLine = 18, kLines = 80;  // packs of a line of the tile, lines
constexpr int kAcross = 18, kDown = 14;  // threads along a line, lines at a time
constexpr int kInFlight = 6;  // loads of a thread under way at a time
constexpr int kFilterPitch = 4, kFilterRead = 4;
constexpr int kFilterRows = kTapsH;  // rows of taps
constexpr int kFilterChannel = kChunk * kFilterRows * kFilterPitch;

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

// One pack of the tile, from global memory. `first` is the pixel at the tile's corner, which may lie outside x.
// kInside: no pixel of the tile does, so none is checked.
template <bool kInside>
__device__ __forceinline__ Pack<in_t, kVector> load_pixels(const in_t* __restrict__ x, int plane, int row, int column, int first_h, int first_w) {
    x += plane / kChunk * kXGroup + plane % kChunk * kXQ;
    const int ph = first_h + row;
    const int pw = first_w + column;
    if constexpr (kInside) return load_pack<kVector>(x + ph * kXH + pw * kXW);

    Pack<in_t, kVector> pack = {};
    const int ih = source_index<kSourceH, 1, kBorder>(ph);
    if (ih < 0) return pack;
    x += ih * kXH;
    if (pw >= 0 && pw + kVector <= kSourceW) return load_pack<kVector>(x + pw * kXW);
    #pragma unroll
    for (int v = 0; v < kVector; ++v) {
        const int iw = source_index<kSourceW, 1, kBorder>(pw + v);
        if (iw >= 0) pack.lane[v] = x[iw * kXW];
    }
    return pack;
}

__device__ __forceinline__ void store_pixels(float* to, const Pack<in_t, kVector>& pack) {
    constexpr int kStore = kVector < 4 ? kVector : 4;
    #pragma unroll
    for (int v = 0; v < kVector; v += kStore) {
        Pack<float, kStore> floats;
        #pragma unroll
        for (int lane = 0; lane < kStore; ++lane) floats.lane[lane] = to_float(pack.lane[v + lane]);
        store_pack(to + v, floats);
    }
}

// Copies planes [q0, q0 + kChunk) of the block's groups into the tile; `x` points at the first of them. A thread keeps
// its place in a line and goes from line to line, with several loads under way before it stores the first.
template <bool kInside>
__device__ __forceinline__ void load_tile(float* tile, const in_t* __restrict__ x, int first_h, int first_w, int thread) {
    constexpr int kBatch = kInside || kInFlight < 4 ? kInFlight : 4;
    const int first_line = thread / kAcross;
    if (first_line >= kDown) return;
    #pragma unroll 1
    for (int part = 0; part * kAcross < kLine; ++part) {
        const int i = part * kAcross + thread % kAcross;
        if (kLine % kAcross != 0 && i >= kLine) break;
        const int column = i * kVector;
        #pragma unroll 1
        for (int round = 0; round * kDown < kLines; round += kBatch) {
            Pack<in_t, kVector> packs[kBatch];
            #pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const int at = first_line + (round + k) * kDown, plane = at / kRows, row = at % kRows;
                if (at < kLines) packs[k] = load_pixels<kInside>(x, plane, row, column, first_h, first_w);
            }
            #pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const int at = first_line + (round + k) * kDown, plane = at / kRows, row = at % kRows;
                if (at < kLines) store_pixels(tile + plane * kPlane + row * kPitch + column, packs[k]);
            }
        }
    }
}

// Copies the block's channels of the filter for the same planes, rows of taps padded with zeros.
__device__ __forceinline__ void load_filter(float* filter, const in_t* __restrict__ w, int g0, int m0, int q0, int thread) {
    for (int i = thread; i < kBlockG * kBlockM * kFilterChannel; i += kThreads) {
        const int fw = i % kFilterPitch;
        const int fh = i / kFilterPitch % kTapsH;
        const int q = q0 + i / (kFilterRows * kFilterPitch) % kChunk;
        const int g = g0 + i / (kBlockM * kFilterChannel), m = m0 + i / kFilterChannel % kBlockM;
        const bool exists = fw < kTapsW;
        filter[i] = exists ? to_float(w[g * kWGroup + m * kWM + q * kWQ + fh * kWH + fw * kWW]) : 0.0f;
    }
}

// Adds the planes of one chunk to the thread's sums. `tile` points at the first pixel the thread reads,
// `filter` at its first channel. A row of pixels is read once, for all rows of results that use it.
__device__ __forceinline__ void accumulate(float (&acc)[kTileM][kTileH][kTileW], const float* tile, const float* filter) {
    #pragma unroll 1
    for (int plane = 0; plane < kChunk; ++plane) {
        #pragma unroll
        for (int ih = 0; ih < kReadsH; ++ih) {
            const float* const row = tile + plane * kPlane + ih * kPitch;
            float xs[kReadsW];
            #pragma unroll
            for (int i = 0; i < kReadsW; i += kRead) {
                const Pack<float, kRead> pack = load_pack<kRead>(row + i);
                #pragma unroll
                for (int lane = 0; lane < kRead; ++lane) xs[i + lane] = pack.lane[lane];
            }
            #pragma unroll
            for (int th = 0; th < kTileH; ++th) {
                const int fh = tap_between<kStepH, kSpreadH, kTapsH>(th, ih);
                if (fh < 0) continue;
                #pragma unroll
                for (int m = 0; m < kTileM; ++m) {
                    float ws[(kSegment + kFilterRead - 1) / kFilterRead * kFilterRead];
                    const float* const taps = filter + m * kFilterChannel + (plane * kTapsH + fh) * kFilterPitch;
                    #pragma unroll
                    for (int fw = 0; fw < kSegment; fw += kFilterRead) {
                        const Pack<float, kFilterRead> pack = load_pack<kFilterRead>(taps + fw);
                        #pragma unroll
                        for (int lane = 0; lane < kFilterRead; ++lane) ws[fw + lane] = pack.lane[lane];
                    }
                    #pragma unroll
                    for (int fw = 0; fw < kSegment; ++fw) {
                        #pragma unroll
                        for (int tw = 0; tw < kTileW; ++tw) {
                            constexpr int kFirst = kSkip;
                            const int at = kFirst + tw * kStepW + fw * kSpreadW;
                            float& sum = acc[m][th][tw];
                            sum = fma_acc(xs[at], ws[fw], sum);
                        }
                    }
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
conv2d_fprop_halo_tiled_n2c8i13x11_k12f3x3p1_fp32_nchw_2a14bc5c(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* y) {
    CONVGEN_SHARED(shared);
    float* const tiles = reinterpret_cast<float*>(shared);
    float* const filters = tiles + kPlanes * kPlane;
    const int thread = (threadIdx.z * kThreadsY + threadIdx.y) * kThreadsX + threadIdx.x;

    // The block's channels, results, and the pixel at the corner of its tile.
    int block = static_cast<int>(blockIdx.x);
    const int m0 = block % kMBlocks * kBlockM;
    block /= kMBlocks;
    const int g0 = block % kGroupBlocks * kBlockG;
    block /= kGroupBlocks;
    const int block_w = block % kBlocksW * kBlockW;
    block /= kBlocksW;
    const int block_h = block % kBlocksH * kBlockH;
    block /= kBlocksH;
    const int b = block;
    const int first_h = block_h * kStepH - kOffsetH;
    const int first_w = block_w * kStepW - kOffsetW - kLead;
    const bool inside = first_h >= 0 && first_h + kSpanH <= kSourceH && first_w >= 0 && first_w + kColumns <= kSourceW;
    x += b * kXBatch + g0 * kXGroup;
    const auto load = [&](int q0) {
        float* const tile = tiles;
        if (inside) {
            load_tile<true>(tile, x + q0 * kXQ, first_h, first_w, thread);
        } else {
            load_tile<false>(tile, x + q0 * kXQ, first_h, first_w, thread);
        }
        load_filter(filters, w, g0, m0, q0, thread);
    };

    // The thread's channels, results, and its corner of the tile.
    const int g = g0;
    const int m = m0 + threadIdx.z * kTileM;
    const int oh = block_h + threadIdx.y * kTileH;
    const int ow = block_w + threadIdx.x * kTileW;
    const int corner = threadIdx.y * kTileH * kStepH * kPitch + threadIdx.x * kTileW * kStepW + kLead - kSkip;
    float acc[kTileM][kTileH][kTileW] = {};
    const auto compute = [&](int q0) {
        const float* const tile = tiles + corner;
        const float* const filter = filters + threadIdx.z * kTileM * kFilterChannel;
        accumulate(acc, tile, filter);
    };

    load(0);
    __syncthreads();
    compute(0);

    const Epilogue epilogue{bias};
    const offset_t first = b * kYBatch + g * kYGroup + m * kYM + oh * kYH + ow * kYW;
    #pragma unroll
    for (int th = 0; th < kTileH; ++th) {
        if (oh + th >= kOutH) continue;
        #pragma unroll
        for (int i = 0; i < kTileM; ++i) {
            const offset_t row = first + i * kYM + th * kYH;
            #pragma unroll
            for (int tw = 0; tw < kTileW; ++tw) {
                if (ow + tw >= kOutW) continue;
                const offset_t offset = row + tw * kYW;
                y[offset] = from_float<out_t>(epilogue.apply(y, offset, g * kM + m + i, acc[i][th][tw]));
            }
        }
    }
}
