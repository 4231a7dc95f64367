// conv2d_fprop_winograd_product_n2c40i13x11_k12f3x3p1_fp32_nchw_fe9d1a7a
// conv2d n=2 c=40 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu
// winograd: kernels=separate,points=0:1:-1,product=3xtf32,block_m=16,block_n=32,block_k=16,thread_m=2,thread_n=2,share=1,workspace_mib=1024
//
// Idea       F(2x2, 3x3): a tile of 2 x 2 results takes 16 products a channel instead of 36. Input tile d, filter g and
//            products are related by linear transforms whose factors are so simple that they are a few additions,
//            Y = A^T [ (G g G^T) * (B^T d B) ] A, and summing the products over channels before the
//            inverse makes each of the 16 components a matrix product of its own.
//            Kernels: the filter's transform (depends on w alone), the input's, one batched product over all components,
//            the inverse with the epilogue.
//            Winograd: Arithmetic Complexity of Computations, 1980. Lavin, Gray: Fast Algorithms for Convolutional
//            Neural Networks, 2016. Matrices: Cook-Toom at the points 0, 1, -1 and infinity.
//
//            B^T  [     1     0    -1     0 ]
//                 [     0     1     1     0 ]
//                 [     0    -1     1     0 ]
//                 [     0    -1     0     1 ]
//            G    [     1     0     0 ]
//                 [   1/2   1/2   1/2 ]
//                 [   1/2  -1/2   1/2 ]
//                 [     0     0     1 ]
//            A^T  [     1     1     1     0 ]
//                 [     0     1    -1     1 ]
//            A line takes 4 additions for the input, 3 for the filter and 4 for the inverse, after common ones are shared.
//
// Notation   x x   w w   y y   (the roles that make fprop this sum)
//            tile  2 x 2 results along h, w; 7 x 6 of them a batch element, 2 elements
//            t     component, 16   q  summed channel, 40 a group   m  result channel, 12 a group of 1
//            U[t][q][m] = G w G^T    V[t][q][tile] = B^T x B    M[t][m][tile] = sum over q of U V
//
// Mapping    block   16 channels x 32 tiles of one component, 16 summed channels a step, 128 threads
//            warp    16 channels x 8 tiles, in pieces of 16 x 8 (device/mma.cuh)
//            thread  2 channels x 2 tiles
//            grid.x  channel tiles (fastest), groups, components, tiles
//
// Shared     two stages, one multiplied while the other is filled (by cp.async); one barrier a step
//            +- stage 0 ------------------------------+- stage 1 --------+
//            | U [1][16][24]      | V [1][16][40]      | the same         |
//            +--------------------+-------------------+------------------+   float
//
// Numerics   fp32: transforms rounded once an addition, products in three parts on tensor cores, summed in fp32. An error is at most
//            39 * 2^-24 * 7.111 * (|x| * |w|), where |x| is the largest within a tile and |w| the largest tap.
//            Sums of small integers are exact. A NaN or an infinity of x spreads over the results of its tiles.

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

// Copies from global to shared memory that run while their thread goes on. Before sm_80 it waits for each.
//
// A thread's copies since its last commit are a group; groups end in order. After cp_async_wait_group<N> all but the
// thread's N latest groups have ended; other threads see what they wrote after a barrier that follows. The destination is
// neither read nor written from the call to that wait, nor is it copied to before a barrier behind its last readers.

template <int kBytes>
struct __align__(kBytes) Words {
    unsigned word[kBytes / 4];
};

// kBytes (4, 8 or 16, both addresses aligned to that) of which the first `valid` are copied and the rest become zero; with
// none valid the source is not read.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, int valid = kBytes) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef CONVGEN_SIM
    convgen_sim_cp_async(shared, global, kBytes, valid);
#elif __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(address), "l"(global), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;"
                     :: "r"(address), "l"(global), "n"(kBytes), "r"(valid) : "memory");
#else
    Words<kBytes> words = {};
    if (valid == kBytes) {
        words = *static_cast<const Words<kBytes>*>(global);
    } else {
        #pragma unroll
        for (int i = 0; i < kBytes; ++i)
            if (i < valid) words.word[i / 4] |= static_cast<unsigned>(static_cast<const unsigned char*>(global)[i]) << i % 4 * 8;
    }
    *static_cast<Words<kBytes>*>(shared) = words;
#endif
}

__device__ __forceinline__ void cp_async_commit_group() {
#ifdef CONVGEN_SIM
    convgen_sim_cp_async_commit();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int kGroups>
__device__ __forceinline__ void cp_async_wait_group() {
#ifdef CONVGEN_SIM
    convgen_sim_cp_async_wait(kGroups);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(kGroups) : "memory");
#endif
}

// Starts copying kRows rows of kRow floats, which lie one after the other in global memory, to rows kPitch apart in shared
// memory, 16 bytes a copy. The caller commits them as a group and waits for it.
template <int kRows, int kRow, int kPitch, int kThreads>
__device__ __forceinline__ void copy_rows(float* to, const float* from, int thread) {
    constexpr int kPacks = kRows * kRow / 4;
    #pragma unroll
    for (int round = 0; round < (kPacks + kThreads - 1) / kThreads; ++round) {
        const int element = (round * kThreads + thread) * 4;
        if (kPacks % kThreads != 0 && element >= kPacks * 4) break;
        cp_async<16>(to + element / kRow * kPitch + element % kRow, from + element);
    }
}

// Tensor cores: d += a * b on tiles held in a warp's registers (mma.sync). All 32 lanes call it together.
//
// d is 16 x 8, a 16 x k, b k x 8, where k elements are 256 bits: 16 of fp16 or bf16, 8 of TF32, 32 of int8. A register of
// a or b holds e neighbours along k (2, 1, 4), the first in the lowest bits. Lane l holds, with s = l / 4 and t = l % 4,
//     a[i], element j   row s + 8 * (i % 2),      k (4 * (i / 2) + t) * e + j
//     b[i], element j   k (4 * i + t) * e + j,    column s
//     d[i]              row s + 8 * (i / 2),      column 2 * t + i % 2
// d is fp32, or int32 of int8. Before sm_80 there are fp16 and int8, in several smaller steps.
enum MmaType { kMmaFp16, kMmaBf16, kMmaTf32, kMmaInt8, kMmaUint8 };  // kMmaUint8: a is unsigned, b signed

#ifndef CONVGEN_SIM
#define CONVGEN_MMA(shape_and_types)                                                                            \
    asm volatile("mma.sync.aligned." shape_and_types " { %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};" \
                 : CONVGEN_MMA_D(d)                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

template <MmaType kType>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kType == kMmaFp16 || kType == kMmaBf16 || kType == kMmaTf32, "int8 accumulates in int");
#ifdef CONVGEN_SIM
    convgen_sim_mma(kType, d, a, b);
#elif __CUDA_ARCH__ >= 800
#define CONVGEN_MMA_D(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    if constexpr (kType == kMmaFp16) CONVGEN_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    if constexpr (kType == kMmaBf16) CONVGEN_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    if constexpr (kType == kMmaTf32) CONVGEN_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
#undef CONVGEN_MMA_D
#else
    static_assert(kType == kMmaFp16, "bf16 and TF32 tensor cores came with sm_80");
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 { %0, %1, %2, %3}, { %4, %5}, { %6}, { %0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
    }
#endif
}

template <MmaType kType>
__device__ __forceinline__ void mma(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kType == kMmaInt8 || kType == kMmaUint8, "floating point accumulates in float");
#ifdef CONVGEN_SIM
    convgen_sim_mma(kType, d, a, b);
#elif __CUDA_ARCH__ >= 800
#define CONVGEN_MMA_D(d) "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
    if constexpr (kType == kMmaInt8) CONVGEN_MMA("m16n8k32.row.col.s32.s8.s8.s32");
    if constexpr (kType == kMmaUint8) CONVGEN_MMA("m16n8k32.row.col.s32.u8.s8.s32");
#undef CONVGEN_MMA_D
#else
    #pragma unroll
    for (int i = 0; i < 4; ++i) {  // a[i]: 8 rows, half of k
        int* const rows = &d[i % 2 * 2];
        if constexpr (kType == kMmaInt8)
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 { %0, %1}, { %2}, { %3}, { %0, %1};"
                         : "+r"(rows[0]), "+r"(rows[1]) : "r"(a[i]), "r"(b[i / 2]));
        else
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 { %0, %1}, { %2}, { %3}, { %0, %1};"
                         : "+r"(rows[0]), "+r"(rows[1]) : "r"(a[i]), "r"(b[i / 2]));
    }
#endif
}
#undef CONVGEN_MMA

// The nearest TF32 number (ties away from zero), as an operand.
__device__ __forceinline__ unsigned to_tf32(float value) {
#ifdef CONVGEN_SIM
    return value != value ? 0x7fffffffu : (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
#elif __CUDA_ARCH__ >= 800
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
#endif
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
constexpr int kGroups = 1, kM = 12, kQ = 40;
constexpr int kOutH = 13, kSourceH = 13, kStepH = 1;
constexpr int kFirstH = -1;  // from a result to the first pixel it reads
constexpr int kTileH = 2, kTilesH = 7;
constexpr int kOutW = 11, kSourceW = 11, kStepW = 1;
constexpr int kFirstW = -1;  // from a result to the first pixel it reads
constexpr int kTileW = 2, kTilesW = 6;
constexpr int kTiles = kTilesH * kTilesW;  // of a batch element
constexpr Border kBorder = kZeros;

// Strides, in elements.
constexpr offset_t kXBatch = 5720, kXGroup = 5720, kXQ = 143;
constexpr offset_t kWGroup = 4320, kWM = 360, kWQ = 9;
constexpr offset_t kYBatch = 1716, kYGroup = 1716, kYM = 143;
constexpr offset_t kXH = 11, kWH = 3, kYH = 11;
constexpr offset_t kXW = 1, kWW = 1, kYW = 1;

// A tile of pixels, of taps and of results.
constexpr int kRows = 4, kColumns = 4, kComponents = kRows * kColumns;
constexpr int kTapRows = 3, kTapColumns = 3;
constexpr int kResultRows = 2, kResultColumns = 2;

// Tunables.
constexpr int kBlockM = 16, kBlockN = 32, kBlockK = 16;
constexpr int kThreadM = 2, kThreadN = 2;
constexpr int kShare = 1;  // components of a thread

constexpr int kThreads = 128;
constexpr int kThreadsM = kBlockM / kThreadM, kThreadsN = kBlockN / kThreadN, kLanes = kThreadsM * kThreadsN;
constexpr int kWarpN = 4, kWarpM = 32 / kWarpN;
constexpr int kTilesM = (kM + kBlockM - 1) / kBlockM, kPaddedM = kTilesM * kBlockM;
constexpr int kSteps = (kQ + kBlockK - 1) / kBlockK, kPaddedQ = kSteps * kBlockK;
constexpr int kPitchM = 24, kPitchN = 40;  // floats from one row of a stage's U and V to the next
constexpr int kAlongQ = 1;  // neighbouring threads that read neighbouring channels of a pixel

// The transformed filter lies in the order in which stages take it: [g][tile of m][step][t][k][m].
constexpr int kFilterRun = kBlockK * kBlockM, kFilterStage = kComponents * kFilterRun;

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

// The transforms of one line.
__device__ __forceinline__ void transform_input(const float (&x)[4], float (&y)[4]) {
    y[0] = x[0] - x[2];
    y[1] = x[1] + x[2];
    y[2] = x[2] - x[1];
    y[3] = x[3] - x[1];
}

__device__ __forceinline__ void transform_filter(const float (&x)[3], float (&y)[4]) {
    const float t0 = x[0] + x[2];
    y[0] = x[0];
    y[1] = fma_acc((1.0f / 2.0f), x[1], (1.0f / 2.0f) * t0);
    y[2] = fma_acc((-1.0f / 2.0f), x[1], (1.0f / 2.0f) * t0);
    y[3] = x[2];
}

__device__ __forceinline__ void invert(const float (&x)[4], float (&y)[2]) {
    y[0] = x[0] + x[1] + x[2];
    y[1] = x[1] + x[3] - x[2];
}

// The same of a tile: along its rows, then along its columns.
__device__ __forceinline__ void transform_input_tile(const float (&from)[kRows][kColumns], float (&to)[kRows][kColumns]) {
    float between[kRows][kColumns];
    #pragma unroll
    for (int r = 0; r < kRows; ++r) transform_input(from[r], between[r]);
    #pragma unroll
    for (int c = 0; c < kColumns; ++c) {
        float column[kRows], result[kRows];
        #pragma unroll
        for (int r = 0; r < kRows; ++r) column[r] = between[r][c];
        transform_input(column, result);
        #pragma unroll
        for (int r = 0; r < kRows; ++r) to[r][c] = result[r];
    }
}

__device__ __forceinline__ void transform_filter_tile(const float (&from)[kTapRows][kTapColumns], float (&to)[kRows][kColumns]) {
    float between[kTapRows][kColumns];
    #pragma unroll
    for (int r = 0; r < kTapRows; ++r) transform_filter(from[r], between[r]);
    #pragma unroll
    for (int c = 0; c < kColumns; ++c) {
        float column[kTapRows], result[kRows];
        #pragma unroll
        for (int r = 0; r < kTapRows; ++r) column[r] = between[r][c];
        transform_filter(column, result);
        #pragma unroll
        for (int r = 0; r < kRows; ++r) to[r][c] = result[r];
    }
}

__device__ __forceinline__ void invert_tile(const float (&from)[kRows][kColumns], float (&to)[kResultRows][kResultColumns]) {
    float between[kRows][kResultColumns];
    #pragma unroll
    for (int r = 0; r < kRows; ++r) invert(from[r], between[r]);
    #pragma unroll
    for (int c = 0; c < kResultColumns; ++c) {
        float column[kRows], result[kResultRows];
        #pragma unroll
        for (int r = 0; r < kRows; ++r) column[r] = between[r][c];
        invert(column, result);
        #pragma unroll
        for (int r = 0; r < kResultRows; ++r) to[r][c] = result[r];
    }
}

// Where a tile lies: its batch element and its first result, if there is such a tile.
struct Place {
    int b, oh, ow;
    bool exists;
};

__device__ __forceinline__ Place place(int index) {
    Place at;
    at.ow = index % kTilesW * kTileW;
    index /= kTilesW;
    at.oh = index % kTilesH * kTileH;
    index /= kTilesH;
    at.b = index;
    at.exists = index < batch;
    return at;
}

// The pixels of one channel that a tile reads; zeros where there is none.
__device__ __forceinline__ void read_tile(const in_t* x, const Place& at, float (&pixels)[kRows][kColumns]) {
    #pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const Source ih = source<kSourceH, 1, kBorder>(at.oh + kFirstH + r);
        #pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const Source iw = source<kSourceW, 1, kBorder>(at.ow + kFirstW + c);
            const bool exists = at.exists && ih.exists && iw.exists;
            pixels[r][c] = exists ? to_float(x[ih.index * kXH + iw.index * kXW]) : 0.0f;
        }
    }
}

// The results of one channel, as far as the tile lies within y.
__device__ __forceinline__ void write_tile(const Epilogue& epilogue, out_t* y, const Place& at, int g, int m, const float (&results)[kResultRows][kResultColumns]) {
    constexpr int kPack = 1;  // results a store writes
    const offset_t first = at.b * kYBatch + g * kYGroup + m * kYM + at.oh * kYH + at.ow * kYW;
    #pragma unroll
    for (int r = 0; r < kResultRows; ++r) {
        if (at.oh + r >= kOutH) break;
        #pragma unroll
        for (int c = 0; c < kResultColumns; c += kPack) {
            if (at.ow + c >= kOutW) break;
            const offset_t offset = first + r * kYH + c * kYW;
            Pack<out_t, kPack> pack;
            #pragma unroll
            for (int v = 0; v < kPack; ++v) pack.lane[v] = from_float<out_t>(epilogue.apply(y, offset + v, g * kM + m, results[r][c + v]));
            store_pack(y + offset, pack);
        }
    }
}

// Summed channel and tile of the block that an item of the input's transform stands for.
struct Item {
    int k, n;
};

__device__ __forceinline__ Item item(int index) {
    return {index / (kAlongQ * kBlockN) * kAlongQ + index % kAlongQ, index / kAlongQ % kBlockN};
}

// Channel and tile of the block that a thread's sums are of, and how many of them are neighbours.
constexpr int kRunM = 1, kRunN = 2;

__device__ __forceinline__ constexpr int channel_of(int thread_m, int i) {
    return thread_m / 8 * (8 * kThreadM) + i / 2 * 16 + i % 2 * 8 + thread_m % 8;
}

__device__ __forceinline__ constexpr int tile_of(int thread_n, int j) {
    return thread_n / 4 * (4 * kThreadN) + j / 2 * 8 + thread_n % 4 * 2 + j % 2;
}

// Adds the products of the summed channels of a stage, whose components from `first` on are the thread's.
// A factor is a sum of two TF32 numbers, of whose products the smallest is left out; the others are added up apart, small ones first.
constexpr int kParts = 2;  // TF32 numbers a factor is the sum of

__device__ __forceinline__ void split(float value, unsigned& high, unsigned& low) {
    high = to_tf32(value);
    low = to_tf32(value - __uint_as_float(high));
}

__device__ __forceinline__ void multiply(const float* filters, const float* inputs, int first, int thread_m, int thread_n, float (&acc)[kShare][kThreadM][kThreadN]) {
    constexpr int kPiecesM = kThreadM / 2, kPiecesN = kThreadN / 2;
    const int row = thread_m % 8, column = thread_n % 4;  // of the lane, s and t in device/mma.cuh
    #pragma unroll
    for (int s = 0; s < kShare; ++s) {
        const float* const us = filters + (first + s) * kBlockK * kPitchM + thread_m / 8 * (8 * kThreadM) + row;
        const float* const vs = inputs + (first + s) * kBlockK * kPitchN + thread_n / 4 * (4 * kThreadN) + row;
        #pragma unroll 1
        for (int k = 0; k < kBlockK; k += 8) {
            unsigned b[kParts][kPiecesN][2];
            #pragma unroll
            for (int j = 0; j < kPiecesN; ++j) {
                #pragma unroll
                for (int i = 0; i < 2; ++i) split(vs[(k + 4 * i + column) * kPitchN + 8 * j], b[0][j][i], b[1][j][i]);
            }
            #pragma unroll
            for (int m = 0; m < kPiecesM; ++m) {
                unsigned a[kParts][4];
                #pragma unroll
                for (int i = 0; i < 4; ++i) split(us[(k + i / 2 * 4 + column) * kPitchM + 16 * m + i % 2 * 8], a[0][i], a[1][i]);
                float d[kPiecesN][4];
                #pragma unroll
                for (int j = 0; j < kPiecesN; ++j) {
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) d[j][i] = 0.0f;
                }
                #pragma unroll
                for (int j = 0; j < kPiecesN; ++j) mma<kMmaTf32>(d[j], a[1], b[0][j]);
                #pragma unroll
                for (int j = 0; j < kPiecesN; ++j) mma<kMmaTf32>(d[j], a[0], b[1][j]);
                #pragma unroll
                for (int j = 0; j < kPiecesN; ++j) mma<kMmaTf32>(d[j], a[0], b[0][j]);
                #pragma unroll
                for (int j = 0; j < kPiecesN; ++j) {
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) acc[s][2 * m + i / 2][2 * j + i % 2] += d[j][i];
                }
            }
        }
    }
}

// The filter's transform, one thread a pair of channels; zeros where a tile of channels reaches past the last.
extern "C" __global__ void __launch_bounds__(256)
conv2d_fprop_winograd_filter_n2c40i13x11_k12f3x3p1_fp32_nchw_fe9d1a7a(const float* __restrict__ w, float* __restrict__ filters) {
    const offset_t index = static_cast<offset_t>(blockIdx.x) * 256 + threadIdx.x;
    const int m = static_cast<int>(index % kPaddedM), q = static_cast<int>(index / kPaddedM % kPaddedQ);
    const int g = static_cast<int>(index / kPaddedM / kPaddedQ);
    if (g >= kGroups) return;

    float taps[kTapRows][kTapColumns], transformed[kRows][kColumns];
    #pragma unroll
    for (int r = 0; r < kTapRows; ++r) {
        #pragma unroll
        for (int c = 0; c < kTapColumns; ++c) {
            const offset_t offset = g * kWGroup + m * kWM + q * kWQ + r * kWH + c * kWW;
            taps[r][c] = m < kM && q < kQ ? to_float(w[offset]) : 0.0f;
        }
    }
    transform_filter_tile(taps, transformed);
    float* const to = filters + ((static_cast<offset_t>(g) * kTilesM + m / kBlockM) * kSteps + q / kBlockK) * kFilterStage + q % kBlockK * kBlockM + m % kBlockM;
    #pragma unroll
    for (int t = 0; t < kComponents; ++t) to[t * kFilterRun] = transformed[t / kColumns][t % kColumns];
}

constexpr int first_block = 0;  // of tiles, in the one chunk

// The transformed input and the sums, [block of tiles][t][g][channel][tile] both.
constexpr offset_t kInputRun = kPaddedQ * kBlockN, kInputBlock = kComponents * kGroups * kInputRun;
constexpr offset_t kSumRun = kPaddedM * kBlockN, kSumBlock = kComponents * kGroups * kSumRun;

// The input's transform, one thread a channel of a tile.
extern "C" __global__ void __launch_bounds__(256)
conv2d_fprop_winograd_input_n2c40i13x11_k12f3x3p1_fp32_nchw_fe9d1a7a(const float* __restrict__ x, float* __restrict__ inputs) {
    constexpr int kThreadBlocks = (kGroups * kPaddedQ * kBlockN + 255) / 256;  // of a block of tiles
    const int block = blockIdx.x / kThreadBlocks, index = blockIdx.x % kThreadBlocks * 256 + threadIdx.x;
    const int g = index / (kPaddedQ * kBlockN), q = item(index % (kPaddedQ * kBlockN)).k, n = item(index % (kPaddedQ * kBlockN)).n;
    if (g >= kGroups) return;

    Place at = place((first_block + block) * kBlockN + n);
    at.exists = at.exists && q < kQ;
    float pixels[kRows][kColumns], transformed[kRows][kColumns];
    read_tile(x + at.b * kXBatch + g * kXGroup + q * kXQ, at, pixels);
    transform_input_tile(pixels, transformed);
    float* const to = inputs + block * kInputBlock + g * kInputRun + q * kBlockN + n;
    #pragma unroll
    for (int t = 0; t < kComponents; ++t) to[t * kGroups * kInputRun] = transformed[t / kColumns][t % kColumns];
}

// The product, one block of threads a component.
extern "C" __global__ void __launch_bounds__(128, 10)
conv2d_fprop_winograd_product_n2c40i13x11_k12f3x3p1_fp32_nchw_fe9d1a7a(const float* __restrict__ filters, const float* __restrict__ inputs, float* __restrict__ sums) {
    const int tile_m = static_cast<int>(blockIdx.x % kTilesM), g = static_cast<int>(blockIdx.x / kTilesM % kGroups);
    const int t = static_cast<int>(blockIdx.x / (kTilesM * kGroups) % kComponents);
    const int block = static_cast<int>(blockIdx.x / (kTilesM * kGroups * kComponents));
    const int thread = threadIdx.x;
    const int thread_m = thread / 32 / (kThreadsN / kWarpN) * kWarpM + thread % 32 / kWarpN;
    const int thread_n = thread / 32 % (kThreadsN / kWarpN) * kWarpN + thread % kWarpN;

    CONVGEN_SHARED(shared);
    float* const stages = reinterpret_cast<float*>(shared);
    constexpr int kFilterFloats = kBlockK * kPitchM, kStage = kFilterFloats + kBlockK * kPitchN;
    const float* const filters_of_tile = filters + (static_cast<offset_t>(g) * kTilesM + tile_m) * kSteps * kFilterStage + t * kFilterRun;
    const float* const inputs_of_tile = inputs + block * kInputBlock + (t * kGroups + g) * kInputRun;
    const auto copy = [&](int step) {
        float* const stage = stages + (step & 1) * kStage;
        copy_rows<kBlockK, kBlockM, kPitchM, kThreads>(stage, filters_of_tile + step * static_cast<offset_t>(kFilterStage), thread);
        copy_rows<kBlockK, kBlockN, kPitchN, kThreads>(stage + kFilterFloats, inputs_of_tile + step * (kBlockK * kBlockN), thread);
        cp_async_commit_group();
    };

    float acc[kShare][kThreadM][kThreadN] = {};
    copy(0);
    for (int step = 0; step < kSteps; ++step) {
        cp_async_wait_group<0>();
        __syncthreads();  // the stage is full, and nobody reads the other one any more
        if (step + 1 < kSteps) copy(step + 1);
        const float* const stage = stages + (step & 1) * kStage;
        multiply(stage, stage + kFilterFloats, 0, thread_m, thread_n, acc);
    }

    float* const to = sums + block * kSumBlock + (t * kGroups + g) * kSumRun;
    constexpr int kPackM = 1, kPackN = kRunN;  // sums a store writes
    #pragma unroll
    for (int i = 0; i < kThreadM; i += kPackM) {
        #pragma unroll
        for (int j = 0; j < kThreadN; j += kPackN) {
            const int m = tile_m * kBlockM + channel_of(thread_m, i), n = tile_of(thread_n, j);
            Pack<float, kPackM * kPackN> pack;
            #pragma unroll
            for (int v = 0; v < kPackM * kPackN; ++v) pack.lane[v] = acc[0][i + v / kPackN][j + v % kPackN];
            store_pack(to + m * kBlockN + n, pack);
        }
    }
}

// The inverse and the epilogue, one thread a channel of a tile.
extern "C" __global__ void __launch_bounds__(256)
conv2d_fprop_winograd_inverse_n2c40i13x11_k12f3x3p1_fp32_nchw_fe9d1a7a(const float* __restrict__ sums, const float* __restrict__ bias, float* y) {
    constexpr int kThreadBlocks = (kGroups * kM * kBlockN + 255) / 256;  // of a block of tiles
    const int block = blockIdx.x / kThreadBlocks, index = blockIdx.x % kThreadBlocks * 256 + threadIdx.x;
    const int n = index % kBlockN, m = index / kBlockN % kM, g = index / kBlockN / kM;
    const Place at = place((first_block + block) * kBlockN + n);
    if (g >= kGroups || !at.exists) return;

    const float* const from = sums + block * kSumBlock + g * kSumRun + m * kBlockN + n;
    float components[kRows][kColumns], results[kResultRows][kResultColumns];
    #pragma unroll
    for (int t = 0; t < kComponents; ++t) components[t / kColumns][t % kColumns] = from[t * kGroups * kSumRun];
    invert_tile(components, results);
    const Epilogue epilogue{bias};
    write_tile(epilogue, y, at, g, m, results);
}
