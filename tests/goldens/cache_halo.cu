// conv2d_fprop_cache_halo_n2c8i13x11_k12f3x3p1_fp32_nchw_b6a65c1f
// conv2d n=2 c=8 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu
// cache_halo: threads_x=128,threads_y=4,threads_z=1,tile_channel=1,chunk=8,filter=global
//
// Idea       The block copies the core of its input tile into shared memory: as many pixels as it has results (times
//            the step). Taps inside the core are read from there; the few on the halo are read from global memory, where
//            they are in L1 or L2, being the core of a neighbouring block that runs at about the same time.
// Source     Kirk, Hwu: Programming Massively Parallel Processors, chapter on convolution (caches for halo cells).
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
// Mapping    block   1 channels x 4 x 128 positions of one batch element
//            thread  1 channels of one position; threadIdx.x along w, y along h
//            grid.x  channel blocks (fastest), then tiles, then batch elements
//
// Shared     core [8 q][4][128] fp32, in the middle of 6 x 130 pixels that the block reads:
//            . . . . . .
//            . c c c c .    c  core, shared memory
//            . c c c c .    .  halo, L1 and L2
//            . . . . . .
//
// Numerics   fp32 FMA in the order q, f; a term outside x is the border's value times its weight.

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
constexpr int kThreads = 512;
constexpr int kTileM = 1;  // result channels of a thread
constexpr int kChunk = 8;  // summed channels in shared memory at a time

// The block's results, and the core of the pixels they read.
constexpr int kMBlocks = (kM + kTileM - 1) / kTileM;
constexpr int kBlockH = 4, kBlocksH = 4, kCoreH = 4;
constexpr int kBlockW = 128, kBlocksW = 1, kCoreW = 128;
constexpr int kCore = kCoreH * kCoreW;

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

extern "C" __global__ void __launch_bounds__(512)
conv2d_fprop_cache_halo_n2c8i13x11_k12f3x3p1_fp32_nchw_b6a65c1f(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* y) {
    CONVGEN_SHARED(shared);
    float* const core = reinterpret_cast<float*>(shared);
    const int thread = threadIdx.y * kBlockW + threadIdx.x;

    // The block's channels and results, and the pixel at the corner of its core.
    int block = static_cast<int>(blockIdx.x);
    const int m0 = block % kMBlocks * kTileM;
    block /= kMBlocks;
    const int g = block % kGroups;
    block /= kGroups;
    const int block_w = block % kBlocksW * kBlockW;
    block /= kBlocksW;
    const int block_h = block % kBlocksH * kBlockH;
    block /= kBlocksH;
    const int b = block;
    const int core_h = block_h * kStepH - kOffsetH + 1;
    const int core_w = block_w * kStepW - kOffsetW + 1;
    x += b * kXBatch + g * kXGroup;

    const int oh = block_h + threadIdx.y;
    const int ow = block_w + threadIdx.x;
    float acc[kTileM] = {};
    for (int q0 = 0; q0 < kQ; q0 += kChunk) {
        constexpr int planes = kChunk;
        for (int i = thread; i < planes * kCore; i += kThreads) {
            const int plane = i / kCore, at = i % kCore;
            const int ih = source_index<kSourceH, 1, kBorder>(core_h + at / kCoreW);
            const int iw = source_index<kSourceW, 1, kBorder>(core_w + at % kCoreW);
            const bool inside = ih >= 0 && iw >= 0;
            core[plane * kCore + at] = inside ? to_float(x[(q0 + plane) * kXQ + ih * kXH + iw * kXW]) : 0.0f;
        }
        __syncthreads();

        for (int plane = 0; plane < planes; ++plane) {
            const int q = q0 + plane;
            #pragma unroll
            for (int fh = 0; fh < kTapsH; ++fh) {
                const int ph = oh * kStepH - kOffsetH + fh * kSpreadH;
                const int ch = ph - core_h;
                #pragma unroll
                for (int fw = 0; fw < kTapsW; ++fw) {
                    const int pw = ow * kStepW - kOffsetW + fw * kSpreadW;
                    const int cw = pw - core_w;
                    float pixel = 0.0f;
                    if (static_cast<unsigned>(ch) < kCoreH && static_cast<unsigned>(cw) < kCoreW) {
                        pixel = core[(plane * kCoreH + ch) * kCoreW + cw];
                    } else {
                        const int ih = source_index<kSourceH, 1, kBorder>(ph);
                        const int iw = source_index<kSourceW, 1, kBorder>(pw);
                        if (ih >= 0 && iw >= 0) pixel = to_float(x[q * kXQ + ih * kXH + iw * kXW]);
                    }
                    #pragma unroll
                    for (int m = 0; m < kTileM; ++m) {
                        const float weight = to_float(w[g * kWGroup + (m0 + m) * kWM + q * kWQ + fh * kWH + fw * kWW]);
                        acc[m] = fma_acc(pixel, weight, acc[m]);
                    }
                }
            }
        }
    }
    if (oh >= kOutH || ow >= kOutW) return;

    const Epilogue epilogue{bias};
    const offset_t first = b * kYBatch + g * kYGroup + m0 * kYM + oh * kYH + ow * kYW;
    #pragma unroll
    for (int m = 0; m < kTileM; ++m) {
        const offset_t offset = first + m * kYM;
        y[offset] = from_float<out_t>(epilogue.apply(y, offset, g * kM + m0 + m, acc[m]));
    }
}
