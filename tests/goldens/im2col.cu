// conv2d_fprop_im2col_gemm_n2c8i13x11_k12f3x3p1_fp32_nchw_60d76c9f
// conv2d n=2 c=8 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu
// im2col: patches=columns,block_m=4,block_n=32,block_k=32,thread_m=1,thread_n=1,split_k=1,workspace_mib=256
//
// Idea       Every patch of x that meets the filter is written out as one column of a matrix, so that the convolution
//            becomes one matrix product a group, whose inner loop knows nothing of padding, strides or taps.
//            First kernel: the matrix. Second kernel: the product, with the epilogue in its store.
//            Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks for Document Processing, 2006.
//
// Notation   y[m, column] = sum over terms of w[m, term] * unrolled[term, column], for each group g
//            x x   w w   y y   (the roles that make fprop this sum)
//            column  (b, o): b batch element, 2; o result position, 13 x 11
//            term    (q, f): q summed channel, 8 a group; f tap, 3 x 3
//            m       result channel, 12 a group of 1
//            chunk   what one launch works on: 2 batch elements x 13 rows, 96 terms; 1 in all
//            unrolled[term, column] = x[b, g, q, (o*step - offset + f*spread) / divisor]
//
// Mapping    block   4 channels x 32 columns, 32 terms a step, 128 threads
//            warp    4 (channels) x 8 (columns) threads
//            thread  1 channels x 1 columns, in runs of up to four neighbours
//            grid.x  channel tiles (fastest), groups, column tiles, so that blocks that share columns run together
//            grid.y  1 part of the chunk's terms
//
// Shared     two stages, one multiplied while the other is filled; one barrier a step
//            +- stage 0 -----------------------------------+- stage 1 --------+
//            | w tile            | unrolled tile           |                  |
//            | [32][4 + kSkew]   | [32][32 + kSkew]        | the same         |
//            +-------------------+-------------------------+------------------+   float
//
// Numerics   fp32 FMA in the order of the terms. The unrolled matrix holds x unchanged. A term outside x is
//            the border's value times its weight.

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

// A kExtent x kDepth tile of an operand on its way from global to shared memory. `depth` is the summed index, `extent`
// the other one. Between fetch and store a thread holds its part in registers, so that a tile travels while the one
// before it is being multiplied. In shared memory the tile is float[kDepth][kExtent + kSkew].
constexpr int kSkew = 4;  // moves the rows of a transposing store to different banks, keeps 16-byte alignment

template <typename T, int kCount>
__device__ __forceinline__ Pack<T, kCount> zero_pack() {
    Pack<T, kCount> pack;
    #pragma unroll
    for (int i = 0; i < kCount; ++i) pack.lane[i] = from_float<T>(0.0f);
    return pack;
}

// Packs of kPack elements lie along the depth (kAlongDepth) or along the extent, as they do in global memory.
template <typename T, int kExtent, int kDepth, int kPack, bool kAlongDepth, int kThreads>
struct Tile {
    static constexpr int kFloats = kDepth * (kExtent + kSkew);
    static constexpr int kPacks = kExtent * kDepth / kPack;
    static constexpr int kRounds = (kPacks + kThreads - 1) / kThreads;
    static constexpr int kRow = (kAlongDepth ? kDepth : kExtent) / kPack;  // packs side by side

    Pack<T, kPack> held[kRounds];

    // read(extent, depth) returns the pack whose first element lies there.
    template <typename Read>
    __device__ __forceinline__ void fetch(int thread, Read read) {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int pack = round * kThreads + thread;
            if (kPacks % kThreads != 0 && pack >= kPacks) break;
            const int along = pack % kRow * kPack, across = pack / kRow;
            held[round] = kAlongDepth ? read(across, along) : read(along, across);
        }
    }

    __device__ __forceinline__ void store(int thread, float* shared) const {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int pack = round * kThreads + thread;
            if (kPacks % kThreads != 0 && pack >= kPacks) break;
            const int along = pack % kRow * kPack, across = pack / kRow;
            Pack<float, kPack> values;
            #pragma unroll
            for (int i = 0; i < kPack; ++i) values.lane[i] = to_float(held[round].lane[i]);
            if constexpr (kAlongDepth) {
                #pragma unroll
                for (int i = 0; i < kPack; ++i) shared[(along + i) * (kExtent + kSkew) + across] = values.lane[i];
            } else {
                store_pack(shared + across * (kExtent + kSkew) + along, values);
            }
        }
    }
};

// The kTile of a block's kBlock rows (or columns) that belong to one thread come in runs of up to four neighbours, the
// runs of all threads side by side: index of element i of `thread`'s.
template <int kBlock, int kTile>
__device__ __forceinline__ constexpr int fragment_index(int thread, int i) {
    constexpr int kRun = kTile < 4 ? kTile : 4;
    return i / kRun * (kBlock / (kTile / kRun)) + thread * kRun + i % kRun;
}

template <int kBlock, int kTile>
__device__ __forceinline__ void load_fragment(float (&fragment)[kTile], const float* row, int thread) {
    constexpr int kRun = kTile < 4 ? kTile : 4;
    #pragma unroll
    for (int i = 0; i < kTile; i += kRun) {
        const Pack<float, kRun> run = load_pack<kRun>(row + fragment_index<kBlock, kTile>(thread, i));
        #pragma unroll
        for (int j = 0; j < kRun; ++j) fragment[i + j] = run.lane[j];
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

constexpr int batch = 2;
constexpr int kGroups = 1;
constexpr int kM = 12;
constexpr int kQ = 8;
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
constexpr int kBlockM = 4, kBlockN = 32, kBlockK = 32;
constexpr int kThreadM = 1, kThreadN = 1;
constexpr int kSplits = 1, kParts = 1;

constexpr int kThreadsM = kBlockM / kThreadM, kThreadsN = kBlockN / kThreadN, kThreads = kThreadsM * kThreadsN;
constexpr int kTilesM = (kM + kBlockM - 1) / kBlockM;
constexpr int kTerms = kQ * kTapsH * kTapsW;
constexpr int kChunkBatch = 2;
constexpr int kChunkRows = 13;
constexpr int kChunkOut = 143;  // columns of a batch element
constexpr int kChunkTerms = 96;  // whole tiles, what is missing is zero
constexpr int kSteps = kChunkTerms / kBlockK;
constexpr int first_batch = 0, first_row = 0, first_term = 0;  // the one chunk

// Loads of x and w bring that many elements.
constexpr int kXPack = 1, kWPack = 4;

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

// Where a column of the matrix lies: its batch element and its position, if the chunk has such a column.
struct Column {
    int b, oh, ow;
    bool exists;
};

struct Chunk {
    int batch, first_batch, first_row, first_term;

    __device__ __forceinline__ int columns() const { return kChunkBatch * kChunkOut; }
    __device__ __forceinline__ int padded_columns() const { return (columns() + 3) / 4 * 4; }

    __device__ __forceinline__ Column column(int index) const {
        Column at;
        at.exists = index < columns();
        at.ow = index % kOutW;
        index /= kOutW;
        at.oh = first_row + index % kChunkRows;
        at.b = first_batch + index / kChunkRows;
        at.exists = at.exists && at.b < batch && at.oh < kOutH;
        return at;
    }
};

struct Term {
    int q, fh, fw;
};

__device__ __forceinline__ Term term(int index) {
    Term at;
    at.fw = index % kTapsW;
    index /= kTapsW;
    at.fh = index % kTapsH;
    at.q = index / kTapsH;
    return at;
}

__device__ __forceinline__ offset_t filter_offset(int index) {
    return index * static_cast<offset_t>(1);
}

// kXPack neighbouring terms of one column of the matrix: x, or zeros outside it.
__device__ __forceinline__ Pack<in_t, kXPack> gather(const in_t* x, const Column& column, int index) {
    const Term at = term(index);
    const int ih = source_index<kSourceH, kDivisorH, kBorder>(column.oh * kStepH - kOffsetH + at.fh * kSpreadH);
    const int iw = source_index<kSourceW, kDivisorW, kBorder>(column.ow * kStepW - kOffsetW + at.fw * kSpreadW);
    const bool inside = column.exists && index < kTerms && ih >= 0 && iw >= 0;
    if (!inside) return zero_pack<in_t, kXPack>();
    return load_pack<kXPack>(x + column.b * kXBatch + at.q * kXQ + ih * kXH + iw * kXW);
}

// First kernel: the unrolled matrix of the chunk, [g][term][column], four neighbours a thread.
extern "C" __global__ void __launch_bounds__(256)
conv2d_fprop_im2col_unroll_n2c8i13x11_k12f3x3p1_fp32_nchw_60d76c9f(const float* __restrict__ x, float* __restrict__ columns) {
    const Chunk chunk{batch, first_batch, first_row, first_term};
    const int padded_columns = chunk.padded_columns();
    const offset_t element = (static_cast<offset_t>(blockIdx.x) * 256 + threadIdx.x) * 4;
    const int first_column = static_cast<int>(element % padded_columns);
    const offset_t row = element / padded_columns;
    const int g = static_cast<int>(row / kChunkTerms);
    if (g >= kGroups) return;

    const int index = first_term + static_cast<int>(row % kChunkTerms);
    Pack<in_t, 4> pack;
    #pragma unroll
    for (int i = 0; i < 4; ++i) pack.lane[i] = gather(x + g * kXGroup, chunk.column(first_column + i), index).lane[0];
    store_pack(columns + element, pack);
}

// Second kernel: the product.
extern "C" __global__ void __launch_bounds__(128, 9)
conv2d_fprop_im2col_gemm_n2c8i13x11_k12f3x3p1_fp32_nchw_60d76c9f(const float* __restrict__ columns, const float* __restrict__ w, const float* __restrict__ bias, float* y) {
    const Chunk chunk{batch, first_batch, first_row, first_term};
    const int m0 = static_cast<int>(blockIdx.x % kTilesM) * kBlockM;
    const int g = static_cast<int>(blockIdx.x / kTilesM % kGroups);
    const int n0 = static_cast<int>(blockIdx.x / (kTilesM * kGroups)) * kBlockN;
    const int thread = threadIdx.x;
    const int thread_m = thread / 32 / (kThreadsN / 8) * 4 + thread % 32 / 8;
    const int thread_n = thread / 32 % (kThreadsN / 8) * 8 + thread % 8;

    // Packs of either operand at an offset in the block's tile and a term of the chunk.
    const in_t* const w_of_group = w + g * kWGroup;
    const auto read_filter = [&](int m, int index) {
        if (m0 + m >= kM || first_term + index >= kTerms) return zero_pack<in_t, kWPack>();
        return load_pack<kWPack>(w_of_group + (m0 + m) * kWM + filter_offset(first_term + index));
    };
    const offset_t padded_columns = chunk.padded_columns();
    const in_t* const matrix = columns + g * padded_columns * kChunkTerms;
    const auto read_matrix = [&](int n, int index) {
        if (n0 + n >= padded_columns) return zero_pack<in_t, 4>();
        return load_pack<4>(matrix + index * padded_columns + n0 + n);
    };
    constexpr int kMatrixPack = 4;

    CONVGEN_SHARED(shared);
    Tile<in_t, kBlockM, kBlockK, kWPack, true, kThreads> filter_tile;
    Tile<in_t, kBlockN, kBlockK, kMatrixPack, false, kThreads> matrix_tile;
    constexpr int kStage = filter_tile.kFloats + matrix_tile.kFloats;
    float* const stages = reinterpret_cast<float*>(shared);

    const auto fetch = [&](int step) {
        filter_tile.fetch(thread, [&](int m, int k) { return read_filter(m, step * kBlockK + k); });
        matrix_tile.fetch(thread, [&](int n, int k) { return read_matrix(n, step * kBlockK + k); });
    };
    const auto store = [&](int step) {
        float* const stage = stages + (step & 1) * kStage;
        filter_tile.store(thread, stage);
        matrix_tile.store(thread, stage + filter_tile.kFloats);
    };

    float acc[kThreadM][kThreadN] = {};
    constexpr int first = 0, last = kSteps;
    if (first < last) {
        fetch(first);
        store(first);
    }
    __syncthreads();
    for (int step = first; step < last; ++step) {
        if (step + 1 < last) fetch(step + 1);
        const float* const filter_rows = stages + (step & 1) * kStage;
        const float* const matrix_rows = filter_rows + filter_tile.kFloats;
        #pragma unroll
        for (int k = 0; k < kBlockK; ++k) {
            float ws[kThreadM], xs[kThreadN];
            load_fragment<kBlockM>(ws, filter_rows + k * (kBlockM + kSkew), thread_m);
            load_fragment<kBlockN>(xs, matrix_rows + k * (kBlockN + kSkew), thread_n);
            #pragma unroll
            for (int i = 0; i < kThreadM; ++i) {
                #pragma unroll
                for (int j = 0; j < kThreadN; ++j) acc[i][j] = fma_acc(xs[j], ws[i], acc[i][j]);
            }
        }
        if (step + 1 < last) store(step + 1);
        __syncthreads();
    }

    const Epilogue epilogue{bias};
    constexpr int kRunM = 1, kRunN = 1;  // results a store writes
    #pragma unroll
    for (int j = 0; j < kThreadN; j += kRunN) {
        const Column column = chunk.column(n0 + fragment_index<kBlockN, kThreadN>(thread_n, j));
        if (!column.exists) continue;
        const offset_t row = column.b * kYBatch + g * kYGroup + column.oh * kYH + column.ow * kYW;
        #pragma unroll
        for (int i = 0; i < kThreadM; i += kRunM) {
            const int m = m0 + fragment_index<kBlockM, kThreadM>(thread_m, i);
            if (m >= kM) continue;
            const offset_t offset = row + m * kYM;
            Pack<out_t, kRunM * kRunN> pack;
            #pragma unroll
            for (int v = 0; v < kRunM * kRunN; ++v) {
                const float value = epilogue.apply(y, offset + v, g * kM + m, acc[i + v / kRunN][j + v % kRunN]);
                pack.lane[v] = from_float<out_t>(value);
            }
            store_pack(y + offset, pack);
        }
    }
}
