// conv2d_fprop_fft_inverse_n2c8i13x11_k12f3x3p1_fp32_nchw_d95010bb
// conv2d n=2 c=8 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu accuracy=fast
// fft: product=batched,tile_h=4,tile_w=4,radix=8,threads=32,tiles=1,tile_channel=1
//
// Idea       The input is cut into tiles that overlap by the filter's reach. Tiles and filters are transformed; at every frequency
//            the sum over channels is a matrix product of its own; its results are transformed back, and those that nothing
//            wrapped around into are kept. Kernels: the filters' spectra, which depend on w alone; the tiles'; the products; the
//            inverse.
//            Overlap-save: Stockham, High-speed convolution and correlation, 1966. Folding: Crandall and Fagin, Discrete
//            weighted transforms and large-integer arithmetic, 1994.
//
// Notation   y[b, g, m, o] = sum over q, f of x[b, g, q, o*step - offset + f*spread] * w[g, m, q, f]
//            x x   w w   y y   (the roles that make fprop this sum)
//            b  batch element     2
//            g  group             1
//            m  result channel    12 a group
//            q  summed channel    8 a group
//            o  result position   13 x 11
//            f  tap               3 x 3
//            n  position in a tile of 4 x 4 pixels, which holds 2 x 2 results
//
// Folding    x is real, so half as many complex points do: z[n] = x[n] + i x[n + 2] along h is x(X) modulo
//            X^2 - i, turned by exp(i pi n / 4) to be a cyclic transform of 2 x 4 points. No spectrum
//            is unpacked, no point is computed twice.
//
// Mapping    block   1 tile, 32 threads
//            pass    H0  along h: 4 transforms of 2 points, one a thread at a time, from memory
//                    W0  along w: 2 transforms of 4 points, one a thread at a time, kept for product and inverse
//            grid.x  channel blocks (fastest), then tiles of an image, groups, batch elements
//            product thread  1 result channels x 4 tiles at one frequency; neighbouring threads take neighbouring frequencies
//
// Shared     1 x [2 h][5] complex numbers, 4 of a row used: the pitch is odd, so that neighbouring threads meet
//            different banks along rows and along columns.
//            +- row 0: 4 points -----+--+
//            | x[0] + i x[2]      |  |   transformed in place, down the columns, then along the rows
//            | x[1] + i x[3]      |  |
//            | ...                 |  |
//            +---------------------+--+
//
// Numerics   fp32; roots of unity are rounded once. An error is bounded by 54 roundings of |w| times the largest |x| of the
//            tile, with the probability that convgen/strategies/fft_error.py gives. A result that is not finite, which one
//            infinity or NaN makes of a whole tile, is computed again from its definition.

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

// Discrete Fourier transforms of a few points in registers: exp(-2 pi i), unscaled, in natural order. The inverse is
// the same transform with real and imaginary parts exchanged before and after.
struct __align__(8) Complex {
    float x, y;
};

__device__ __forceinline__ void count_flops(int flops) {
#ifdef CONVGEN_SIM
    convgen_sim_count_flops(flops);
#endif
}

__device__ __forceinline__ Complex operator+(Complex a, Complex b) {
    count_flops(2);
    return {a.x + b.x, a.y + b.y};
}

__device__ __forceinline__ Complex operator-(Complex a, Complex b) {
    count_flops(2);
    return {a.x - b.x, a.y - b.y};
}

__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
    count_flops(2);
    return {fma_acc(a.x, b.x, -(a.y * b.y)), fma_acc(a.x, b.y, a.y * b.x)};
}

// acc + a * b.
__device__ __forceinline__ Complex fma_acc(Complex a, Complex b, Complex acc) {
    return {fma_acc(-a.y, b.y, fma_acc(a.x, b.x, acc.x)), fma_acc(a.y, b.x, fma_acc(a.x, b.y, acc.y))};
}

// acc + a * b, and a * b, of a real factor.
__device__ __forceinline__ Complex scaled_acc(Complex a, float b, Complex acc) {
    return {fma_acc(a.x, b, acc.x), fma_acc(a.y, b, acc.y)};
}

__device__ __forceinline__ Complex scaled(Complex a, float b) {
    count_flops(2);
    return {a.x * b, a.y * b};
}

// Products with powers of the eighth root of unity (1 - i) / sqrt 2.
constexpr float kHalfRoot = 0.707106781f;
__device__ __forceinline__ Complex quarter_turn(Complex v) { return {v.y, -v.x}; }
__device__ __forceinline__ Complex eighth_turn(Complex v) { return scaled(v + quarter_turn(v), kHalfRoot); }
__device__ __forceinline__ Complex three_eighths_turn(Complex v) { return scaled(quarter_turn(v) - v, kHalfRoot); }
__device__ __forceinline__ Complex half_turn(Complex v) { return {-v.x, -v.y}; }

__device__ __forceinline__ Complex exchanged(Complex v) { return {v.y, v.x}; }

__device__ __forceinline__ void dft(Complex (&v)[2]) {
    const Complex difference = v[0] - v[1];
    v[0] = v[0] + v[1];
    v[1] = difference;
}

// 2 transforms of 2 points, rotations, 2 transforms of 2.
__device__ __forceinline__ void dft(Complex (&v)[4]) {
    Complex columns[2][2];
    #pragma unroll
    for (int j = 0; j < 2; ++j) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) columns[j][i] = v[i * 2 + j];
        dft(columns[j]);
    }
    columns[1][1] = quarter_turn(columns[1][1]);
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        Complex row[2];
        #pragma unroll
        for (int j = 0; j < 2; ++j) row[j] = columns[j][i];
        dft(row);
        #pragma unroll
        for (int j = 0; j < 2; ++j) v[j * 2 + i] = row[j];
    }
}

constexpr int kGroups = 1, kM = 12, kQ = 8;
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
constexpr int kThreads = 32;
constexpr int kTiles = 1;  // of a block
constexpr int kTileM = 1;  // result channels of a block

// The tile along each axis: its pixels, the results it holds, the filter's first tap, pixel 0 of the first tile.
constexpr int kMBlocks = (kM + kTileM - 1) / kTileM;
constexpr int kLengthH = 4, kResultsH = 2, kTilesH = 7;
constexpr int kShiftH = 0, kFirstH = -1, kReachH = 3;
constexpr int kLengthW = 4, kResultsW = 2, kTilesW = 6;
constexpr int kShiftW = 0, kFirstW = -1, kReachW = 3;
constexpr int kFold = 2;
constexpr int kPoints = 2 * 4;
constexpr int kPlane = 10;  // from a tile to the next in shared memory
constexpr int kGap = 16;

constexpr float kLargest = 3.40282347e38f;  // a sum beyond it is infinite or no number

// Roots of unity, cosine and sine: exp(-2 pi i n k / length) of each pass, in rows of equal k.
__device__ const __align__(8) float kRoots[] = {
    1.0f, 0.0f,  // no pass needs any
};

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

using PassH0 = Pass<2, 2, 2, 4, 1, 5, 0, 0>;
using PassW0 = Pass<4, 4, 4, 2, 5, 1, 0, 1>;
using First = PassH0;
using Last = PassW0;

// Of the turns by exp(i pi n / (2 kFold)) that make the folded tile cyclic, those by the distance of a transform's points.
__device__ __forceinline__ void turn_fold(Complex (&v)[2]) {
    v[1] = v[1] * Complex{0.707106769f, 0.707106769f};
}

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

// The passes before the last; pixel(item, n) is the tile's at position n of the folded axis, on the item's lane.
template <typename Pixel>
__device__ __forceinline__ void transform(float* tiles, int planes, int thread, Pixel pixel) {
    #pragma unroll 1
    for (int index = thread; index < planes * First::kItems; index += kThreads) {
        const First item(index);
        Complex v[First::kRadix];
        #pragma unroll
        for (int j = 0; j < First::kRadix; ++j) {
            const int n = item.first + j * First::kStep;
            v[j] = {pixel(item, n), pixel(item, n + kFold)};
        }
        turn_fold(v);
        dft(v);
        item.twist(v);
        item.store(v, tiles);
    }
    __syncthreads();
}

// The last pass; keep(item, j, value) takes the spectrum.
template <typename Keep>
__device__ __forceinline__ void last_pass(float* tiles, int planes, int thread, Keep keep) {
    #pragma unroll 1
    for (int index = thread; index < planes * Last::kItems; index += kThreads) {
        const Last item(index);
        Complex v[Last::kRadix];
        item.load(v, tiles);
        dft(v);
        #pragma unroll
        for (int j = 0; j < Last::kRadix; ++j) keep(item, j, v[j]);
    }
}

// The tap of the filter that position n of its tile holds, negative if none. Taps that reach further back than the tile
// begins lie at its end.
template <int kLength, int kShift, int kReach, int kSpread>
__device__ __forceinline__ int tap_at(int n) {
    const int back = kShift - n < 0 ? kShift - n + kLength : kShift - n;
    constexpr int kApart = kSpread < 0 ? -kSpread : kSpread;
    if (back >= kReach || back % kApart != 0) return -1;
    return kSpread < 0 ? (kReach - 1 - back) / kApart : back / kApart;
}

// First kernel: a transformed filter a block, divided by the points of a tile, in the order in which threads need it:
// [g][m][q][point of an item][item of the last pass].
extern "C" __global__ void __launch_bounds__(32)
conv2d_fprop_fft_spectra_n2c8i13x11_k12f3x3p1_fp32_nchw_d95010bb(const float* __restrict__ w, float* __restrict__ spectra) {
    CONVGEN_SHARED(shared);
    float* const tiles = reinterpret_cast<float*>(shared);
    const int q = static_cast<int>(blockIdx.x) % kQ;
    const int m = static_cast<int>(blockIdx.x) / kQ % kM;
    const int g = static_cast<int>(blockIdx.x) / (kQ * kM);
    w += g * kWGroup + m * kWM + q * kWQ;
    spectra += 2 * kPoints * static_cast<long long>(blockIdx.x);

    transform(tiles, 1, threadIdx.x, [&](const First& item, int n) {
        const int fh = tap_at<kLengthH, kShiftH, kReachH, kSpreadH>(n);
        const int fw = tap_at<kLengthW, kShiftW, kReachW, kSpreadW>(item.lane);
        const bool exists = fh >= 0 && fw >= 0;
        const float weight = exists ? to_float(w[fh * kWH + fw * kWW]) : 0.0f;
        return n > kShiftH ? -weight : weight;  // it wrapped around the fold
    });
    last_pass(tiles, 1, threadIdx.x, [&](const Last& item, int j, Complex value) {
        value = scaled(value, 0.125f);
        store_pack(spectra + 2 * (j * Last::kItems + item.item), Pack<float, 2>{value.x, value.y});
    });
}

// A tile: which batch element and group, which of kInner parts of the group's channels, and along each axis the first result
// and pixel 0.
template <int kInner>
struct Unit {
    int b, g, inner, oh, ih, ow, iw;
    bool exists;

    __device__ __forceinline__ explicit Unit(int index, int batch) {
        inner = index % kInner;
        index /= kInner;
        ow = index % kTilesW * kResultsW;
        iw = kFirstW + ow * kStepW;
        index /= kTilesW;
        oh = index % kTilesH * kResultsH;
        ih = kFirstH + oh * kStepH;
        index /= kTilesH;
        g = index % kGroups;
        b = index / kGroups;
        exists = b < batch;
    }
};

// One result by its definition, for those whose tile holds an infinity, a NaN, or what makes one of them on the way.
__device__ __noinline__ float by_definition(const in_t* x, const in_t* w, int oh, int ow) {
    float sum = 0.0f;
    for (int q = 0; q < kQ; ++q) {
        for (int fh = 0; fh < kTapsH; ++fh) {
            const Source ih = source<kSourceH, kDivisorH, kBorder>(oh * kStepH - kOffsetH + fh * kSpreadH);
            for (int fw = 0; fw < kTapsW; ++fw) {
                const Source iw = source<kSourceW, kDivisorW, kBorder>(ow * kStepW - kOffsetW + fw * kSpreadW);
                const bool exists = ih.exists && iw.exists;
                const float pixel = exists ? to_float(x[q * kXQ + ih.index * kXH + iw.index * kXW]) : 0.0f;
                sum = fma_acc(pixel, to_float(w[q * kWQ + fh * kWH + fw * kWW]), sum);
            }
        }
    }
    return sum;
}

// The pixel of a unit's channel at position n of the folded axis, on the item's lane.
template <int kInner>
__device__ __forceinline__ float pixel_at(const in_t* x, const Unit<kInner>& unit, int q, int n, int lane) {
    const Source ih = source<kSourceH, kDivisorH, kBorder>(unit.ih + n);
    const Source iw = source<kSourceW, kDivisorW, kBorder>(unit.iw + lane);
    const bool exists = unit.exists && ih.exists && iw.exists;
    return exists ? to_float(x[unit.b * kXBatch + unit.g * kXGroup + q * kXQ + ih.index * kXH + iw.index * kXW]) : 0.0f;
}

// The inverse after its first pass, and the results: channel m of the unit's kChannels.
template <int kInner, int kChannels>
__device__ __forceinline__ void finish(float* tiles, int thread, const in_t* x, const in_t* w, out_t* y, const Epilogue& epilogue, int batch, int m) {
    __syncthreads();

    #pragma unroll 1
    for (int index = thread; index < kTiles * First::kItems; index += kThreads) {
        const First item(index);
        const Unit<kInner> unit(static_cast<int>(blockIdx.x) * kTiles + item.plane, batch);
        Complex v[First::kRadix];
        item.load(v, tiles);
        item.twist(v);
        dft(v);
        turn_fold(v);
        const int channel = unit.inner * kChannels + m;
        if (!unit.exists || (kM % kChannels != 0 && channel >= kM)) continue;
        const int ow = unit.ow + item.lane / kStepW;
        if (item.lane >= kResultsW * kStepW || item.lane % kStepW != 0 || ow >= kOutW) continue;
        #pragma unroll
        for (int j = 0; j < 2 * First::kRadix; ++j) {
            const int n = item.first + j % First::kRadix * First::kStep + j / First::kRadix * kFold;
            const int oh = unit.oh + n / kStepH;
            if (n >= kResultsH * kStepH || n % kStepH != 0 || oh >= kOutH) continue;
            float sum = j < First::kRadix ? v[j % First::kRadix].y : v[j % First::kRadix].x;
            if (!(fabsf(sum) <= kLargest)) {
                sum = by_definition(x + unit.b * kXBatch + unit.g * kXGroup, w + unit.g * kWGroup + channel * kWM, oh, ow);
            }
            const offset_t offset = unit.b * kYBatch + unit.g * kYGroup + channel * kYM + oh * kYH + ow * kYW;
            y[offset] = from_float<out_t>(epilogue.apply(y, offset, unit.g * kM + channel, sum));
        }
    }
}

// Second kernel: the spectra of x's tiles, [b][g][tile][q][point of an item][item of the last pass].
extern "C" __global__ void __launch_bounds__(32)
conv2d_fprop_fft_forward_n2c8i13x11_k12f3x3p1_fp32_nchw_d95010bb(const float* __restrict__ x, float* __restrict__ transformed) {
    CONVGEN_SHARED(shared);
    float* const tiles = reinterpret_cast<float*>(shared);
    constexpr int batch = 2;
    const int first_unit = static_cast<int>(blockIdx.x) * kTiles;
    transform(tiles, kTiles, threadIdx.x, [&](const First& item, int n) {
        const Unit<kQ> unit(first_unit + item.plane, batch);
        return pixel_at(x, unit, unit.inner, n, item.lane);
    });
    last_pass(tiles, kTiles, threadIdx.x, [&](const Last& item, int j, Complex value) {
        if (!Unit<kQ>(first_unit + item.plane, batch).exists) return;
        float* const spectrum = transformed + 2 * kPoints * static_cast<long long>(first_unit + item.plane);
        store_pack(spectrum + 2 * (j * Last::kItems + item.item), Pack<float, 2>{value.x, value.y});
    });
}

// Third kernel: at every frequency, products[u][m] = sum over q of transformed[u][q] * spectra[m][q], u a tile of a group.
// A warp's lanes are neighbouring frequencies, so that all its accesses are whole lines; its operands are in L1 for the
// other warps of the block.
extern "C" __global__ void __launch_bounds__(256)
conv2d_fprop_fft_product_n2c8i13x11_k12f3x3p1_fp32_nchw_d95010bb(const float* __restrict__ transformed, const float* __restrict__ spectra, float* __restrict__ products) {
    constexpr int batch = 2;
    constexpr int kTilesU = 4, kWarpsM = 4, kWarpsU = 256 / 32 / kWarpsM;
    constexpr int kImageTiles = 7 * 6;
    constexpr int kBlocksM = (kM + kTileM * kWarpsM - 1) / (kTileM * kWarpsM), kBlocksE = (kPoints + 31) / 32;
    const int warp = threadIdx.x / 32;
    int block = static_cast<int>(blockIdx.x);
    const int m0 = (block % kBlocksM * kWarpsM + warp % kWarpsM) * kTileM;
    block /= kBlocksM;
    const int point = block % kBlocksE * 32 + static_cast<int>(threadIdx.x) % 32;
    block /= kBlocksE;
    const int g = block % kGroups;
    const int u0 = (block / kGroups * kWarpsU + warp / kWarpsM) * kTilesU;
    if (point >= kPoints || m0 >= kM) return;

    // Rows of tile u of the group, which is tile u % kImageTiles of batch element u / kImageTiles; the last one for those
    // beyond it.
    const int last_tile = batch * kImageTiles - 1;
    const auto row_of = [&](int u) {
        const int known = min(u, last_tile);
        return (known / kImageTiles * kGroups + g) * static_cast<long long>(kImageTiles) + known % kImageTiles;
    };
    const float* tile[kTilesU];
    #pragma unroll
    for (int i = 0; i < kTilesU; ++i) tile[i] = transformed + 2 * (row_of(u0 + i) * kQ * kPoints + point);
    const float* const filter = spectra + 2 * ((g * kM + m0) * static_cast<long long>(kQ) * kPoints + point);

    Complex sums[kTilesU][kTileM] = {};
    #pragma unroll 2
    for (int q = 0; q < kQ; ++q) {
        Complex weights[kTileM];
        #pragma unroll
        for (int m = 0; m < kTileM; ++m) {
            const long long row = m0 + m < kM ? m : 0;
            const Pack<float, 2> pack = load_pack<2>(filter + 2 * kPoints * (row * kQ + q));
            weights[m] = {pack.lane[0], pack.lane[1]};
        }
        #pragma unroll
        for (int i = 0; i < kTilesU; ++i) {
            const Pack<float, 2> pack = load_pack<2>(tile[i] + 2 * kPoints * static_cast<long long>(q));
            #pragma unroll
            for (int m = 0; m < kTileM; ++m) sums[i][m] = fma_acc(Complex{pack.lane[0], pack.lane[1]}, weights[m], sums[i][m]);
        }
    }
    #pragma unroll
    for (int i = 0; i < kTilesU; ++i) {
        #pragma unroll
        for (int m = 0; m < kTileM; ++m) {
            if (u0 + i > last_tile || m0 + m >= kM) continue;
            float* const row = products + 2 * ((row_of(u0 + i) * kM + m0 + m) * kPoints + point);
            store_pack(row, Pack<float, 2>{sums[i][m].x, sums[i][m].y});
        }
    }
}

// Last kernel: the inverse of the products.
extern "C" __global__ void __launch_bounds__(32)
conv2d_fprop_fft_inverse_n2c8i13x11_k12f3x3p1_fp32_nchw_d95010bb(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ products, const float* __restrict__ bias, float* y) {
    CONVGEN_SHARED(shared);
    float* const tiles = reinterpret_cast<float*>(shared);
    constexpr int batch = 2;
    const int first_unit = static_cast<int>(blockIdx.x) * kTiles;
    #pragma unroll 1
    for (int index = threadIdx.x; index < kTiles * Last::kItems; index += kThreads) {
        const Last item(index);
        const bool exists = Unit<kM>(first_unit + item.plane, batch).exists;
        const float* const product = products + 2 * (kPoints * static_cast<long long>(first_unit + item.plane) + item.item);
        Complex v[Last::kRadix];
        #pragma unroll
        for (int j = 0; j < Last::kRadix; ++j) {
            const Pack<float, 2> pack = exists ? load_pack<2>(product + 2 * j * Last::kItems) : Pack<float, 2>{};
            v[j] = {pack.lane[1], pack.lane[0]};  // parts exchanged: the inverse
        }
        dft(v);
        item.store(v, tiles);
    }
    const Epilogue epilogue{bias};
    finish<kM, 1>(tiles, threadIdx.x, x, w, y, epilogue, batch, 0);
}
