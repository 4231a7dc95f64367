// conv2d_fprop_implicit_gemm_n2c8i13x11_k12f3x3p1_fp32_nchw_264b8c21
// conv2d n=2 c=8 k=12 in=13x11 filter=3x3 pad=1 epilogue=bias+relu
// implicit_gemm: block_m=16,block_n=64,block_k=16,warps_m=1,warps_n=4,stages=6,split_k=1,raster=2,products=3
//
// Idea       The convolution is a matrix product whose one operand, the patches of x, is never written out: a block copies
//            the pixels of its tile straight from x into shared memory, several tiles ahead (cp.async), and tensor cores
//            multiply the tiles (mma.sync).
//            Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning, 2014; Thakkar et al.: CUTLASS.
//
// Notation   y[m, column] = sum over terms of w[m, term] * patches[term, column], for each group g
//            x x   w w   y y   (the roles that make fprop this sum)
//            column  (b, o): b batch element, 2; o result position, 13 x 11
//            term    (q, f): q summed channel, 8 a group; f tap, 3 x 3
//            m       result channel, 12 a group of 1
//            patches[term, column] = x[b, g, q, (o*step - offset + f*spread) / divisor]
//
// Mapping    block   64 columns x 16 channels, 16 terms a step, 128 threads
//            warp    16 columns x 16 channels, 4 x 1 warps; an mma makes 16 columns x 8 channels
//            grid.x  phases, then column tiles, groups and channel tiles, 2 channel tiles swept together
//            grid.y  1 part of the terms
//
// Shared     a ring of 6 stages, one multiplied while 5 are on their way; after the sums, a slice of results a warp
//            +- stage 0 ---------------------------------+- stage 1 ---+ ... +- table -------------+
//            | x tile 64 x 16        | w tile 16 x 16    |             |     | place in y a column |
//            +-----------------------+-------------------+-------------+     +---------------------+
//            lines along the columns (x) and the terms (w), swizzled as device/mma_tile.cuh tells
//
// Numerics   3xTF32: an fp32 number is two TF32 numbers; of their four products the smallest is left out.
//            A term outside x is the border's value times its weight.

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

// Loads of 8 x 8 matrices of 16-bit elements from shared memory into the layout of device/mma.cuh. All 32 lanes call.
//
// Row i of matrix m is the 16 bytes at the address that lane 8 * m + i gives, 16-byte aligned; all lanes give an address
// of shared memory, also where only the first 8 or 16 are used. Lane l receives of each matrix the elements
// [l / 4][2 * (l % 4)] and the next in that row; with kTransposed, [2 * (l % 4)][l / 4] and the next in that column.
// (A space behind the brace of an asm operand list: a brace and a percent sign would be a tag of the templates.)
// An element of 8 or 32 bits is half or two of 16: transposed, it would be torn.

template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix(unsigned& r0, const void* row) {
#ifdef CONVGEN_SIM
    unsigned registers[1];
    convgen_sim_ldmatrix(registers, row, 1, kTransposed);
    r0 = registers[0];
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 { %0}, [%1];" : "=r"(r0) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 { %0}, [%1];" : "=r"(r0) : "r"(address) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix(unsigned& r0, unsigned& r1, const void* row) {
#ifdef CONVGEN_SIM
    unsigned registers[2];
    convgen_sim_ldmatrix(registers, row, 2, kTransposed);
    r0 = registers[0];
    r1 = registers[1];
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 { %0, %1}, [%2];"
                     : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 { %0, %1}, [%2];"
                     : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row) {
#ifdef CONVGEN_SIM
    unsigned registers[4];
    convgen_sim_ldmatrix(registers, row, 4, kTransposed);
    r0 = registers[0];
    r1 = registers[1];
    r2 = registers[2];
    r3 = registers[3];
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3}, [%4];"
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
#endif
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

// An operand's tile in shared memory, and its way into the fragments of device/mma.cuh.
//
// The tile is kExtent x kDepth: the depth is the summed index, the extent the other one. Its lines lie along the depth
// (kAlongDepth) or along the extent, as its elements do in global memory. A line is chunks of 16 bytes, and the chunks of
// line l change places: chunk c lies where c ^ swizzle(l) would, so that the chunks that a load of fragments reads at
// once lie in different banks:
//
//     line 0 | 0 1 2 3 4 5 6 7 |        128-byte lines along the depth; ldmatrix reads one column of eight chunks
//     line 1 | 1 0 3 2 5 4 7 6 |
//     line 2 | 2 3 0 1 6 7 4 5 |
//
// Lanes and loops each set bits of their own in a chunk's number, so an address is a lane's part, exclusive-or a constant
// within the line, plus whole lines. Elements of 32 bits whose lines lie along the extent are read one by one, the rest by
// ldmatrix (transposing along the extent). A step is 32 bytes of depth, what one mma takes.
template <typename T, int kExtent, int kDepth, bool kAlongDepth>
struct MmaTile {
    static constexpr int kSize = sizeof(T);
    static constexpr int kBytes = kExtent * kDepth * kSize;
    static constexpr int kLine = kAlongDepth ? kDepth : kExtent;
    static constexpr int kLineBytes = kLine * kSize;
    static constexpr int kChunks = kLineBytes / 16;
    static constexpr int kStepDepth = 32 / kSize;
    static constexpr int kSteps = kDepth / kStepDepth;
    static constexpr bool kByElement = !kAlongDepth && kSize == 4;
    static_assert(kChunks >= 2 && (kAlongDepth || kSize != 1) && (!kByElement || kChunks >= 4), "");

    __device__ __forceinline__ static constexpr int swizzle(int line) {
        const int turn = kChunks >= 8 ? line : line / (8 / kChunks);
        return kByElement ? turn % (kChunks >= 8 ? 4 : 2) * 2 : turn % (kChunks >= 8 ? 8 : kChunks);
    }

    // Bytes from the tile's start to an element.
    __device__ __forceinline__ static constexpr int offset(int extent, int depth) {
        const int line = kAlongDepth ? extent : depth, at = kAlongDepth ? depth : extent;
        return line * kLineBytes + ((at * kSize / 16) ^ swizzle(line)) * 16 + at * kSize % 16;
    }

    // The lane's part of the address of fragments from `extent` (a multiple of 16) on. As the a operand a register is 8
    // extents after the one before it, and two of them 16 bytes of depth; as the b operand the other way round.
    template <bool kIsA>
    __device__ __forceinline__ static int lane_offset(int lane, int extent) {
        if constexpr (kByElement) return offset(extent + lane / 4, lane % 4);
        const int near = lane / 8 % 2 * 8, far = lane / 16 * 8;
        const int across = kIsA ? near : far, along = kIsA ? far : near;
        if constexpr (kAlongDepth) return offset(extent + across + lane % 8, along * 2 / kSize);
        return offset(extent + across, along + lane % 8);
    }

    // Four registers of 16 extents, `index` of them further on, at the depth of `step`.
    template <bool kIsA>
    __device__ __forceinline__ static void load(
        unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const unsigned char* tile, int lane_offset, int index, int step
    ) {
        if constexpr (kByElement) {
            const unsigned char* const at = tile + step * 8 * kLineBytes;
            const int near = lane_offset ^ index * 64, far = near ^ 32;
            r0 = *reinterpret_cast<const unsigned*>(at + near);
            (kIsA ? r1 : r2) = *reinterpret_cast<const unsigned*>(at + far);
            (kIsA ? r2 : r1) = *reinterpret_cast<const unsigned*>(at + near + 4 * kLineBytes);
            r3 = *reinterpret_cast<const unsigned*>(at + far + 4 * kLineBytes);
        } else if constexpr (kAlongDepth) {
            ldmatrix(r0, r1, r2, r3, tile + ((lane_offset ^ step * 32) + index * 16 * kLineBytes));
        } else {
            ldmatrix<true>(r0, r1, r2, r3, tile + ((lane_offset ^ index * 32) + step * 16 * kLineBytes));
        }
    }
};

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
constexpr int kStepH = 1, kOffsetH = 1, kSpreadH = 1;
constexpr int kOutW = 11, kSourceW = 11, kTapsW = 3;
constexpr int kStepW = 1, kOffsetW = 1, kSpreadW = 1;

// Strides, in elements.
constexpr offset_t kXBatch = 1144, kXGroup = 1144, kXQ = 143;
constexpr offset_t kWGroup = 864, kWM = 72, kWQ = 9;
constexpr offset_t kYBatch = 1716, kYGroup = 1716, kYM = 143;
constexpr offset_t kXH = 11, kWH = 3, kYH = 11;
constexpr offset_t kXW = 1, kWW = 1, kYW = 1;

// Tunables.
constexpr int kBlockM = 16, kBlockN = 64, kBlockK = 16;
constexpr int kWarpsM = 1, kWarpsN = 4;
constexpr int kStages = 6;
constexpr int kParts = 1;
constexpr int kRaster = 2;

constexpr int kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN;
constexpr int kTilesM = (kM + kBlockM - 1) / kBlockM;
constexpr MmaType kOperands = kMmaTf32;

// Elements that a load of x, a load of w and a store bring.
constexpr int kXWidth = 1, kWWidth = 4, kRun = 1;

using XTile = MmaTile<in_t, kBlockN, kBlockK, false>;
using WTile = MmaTile<in_t, kBlockM, kBlockK, true>;
constexpr int kStageBytes = XTile::kBytes + WTile::kBytes;

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

// Where a column reads and writes: offsets of its first pixel in x and of its result in y, and the pixel's index.
struct Column {
    offset_t x, y;
    int ih, iw;
};

// What a term adds to the column's index, and where it lies in w. `exists`: it is one of the sum's.
struct Term {
    offset_t x, w;
    int ih, iw;
    bool exists;
};

// The problem's extents, or those of the block's phase.
struct Product {
    int columns, terms;

    __device__ __forceinline__ Column column(unsigned index) const {
        const int ow = index % kOutW;
        index /= kOutW;
        const int oh = index % kOutH;
        const int b = index / kOutH;
        Column at;
        at.ih = oh * kStepH - kOffsetH;
        at.iw = ow * kStepW - kOffsetW;
        at.x = b * kXBatch + at.ih * kXH + at.iw * kXW;
        at.y = b * kYBatch + oh * kYH + ow * kYW;
        return at;
    }

    __device__ __forceinline__ Term term(unsigned index) const {
        Term at;
        at.exists = index < terms;
        at.w = index * static_cast<offset_t>(1);
        const int fw = index % kTapsW;
        index /= kTapsW;
        const int fh = index % kTapsH;
        const int q = index / kTapsH;
        at.ih = fh * kSpreadH;
        at.iw = fw * kSpreadW;
        at.x = q * kXQ + at.ih * kXH + at.iw * kXW;
        return at;
    }
};

// The pixel that a term brings to a column, if there is one.
__device__ __forceinline__ bool find(const Column& column, const Term& term, offset_t& offset) {
    offset = column.x + term.x;
    return term.exists && static_cast<unsigned>(column.ih + term.ih) < static_cast<unsigned>(kSourceH) && static_cast<unsigned>(column.iw + term.iw) < static_cast<unsigned>(kSourceW);
}

// A tile on its way to shared memory, kWidth neighbours a load: copied asynchronously, or held in registers if they are
// fewer bytes than such a copy has.
template <typename T, int kExtent, bool kAlongDepth, int kWidth>
struct Loads {
    using Layout = MmaTile<T, kExtent, kBlockK, kAlongDepth>;
    static constexpr int kBytes = kWidth * sizeof(T);
    static constexpr bool kHeld = kBytes < 4;
    static constexpr int kVectors = kExtent * kBlockK / kWidth;
    static constexpr int kRounds = (kVectors + kThreads - 1) / kThreads;
    static constexpr int kRow = Layout::kLine / kWidth;  // loads side by side

    T held[kHeld ? kRounds : 1];

    __device__ __forceinline__ static constexpr bool has(int load) { return kVectors % kThreads == 0 || load < kVectors; }
    __device__ __forceinline__ static constexpr int extent(unsigned load) { return kAlongDepth ? load / kRow : load % kRow * kWidth; }
    __device__ __forceinline__ static constexpr int depth(unsigned load) { return kAlongDepth ? load % kRow * kWidth : load / kRow; }

    __device__ __forceinline__ void start(int round, int load, const T* source, bool exists, unsigned char* tile) {
        if constexpr (kHeld)
            held[round] = exists ? *source : from_float<T>(0.0f);
        else
            cp_async<kBytes>(tile + Layout::offset(extent(load), depth(load)), source, exists ? kBytes : 0);
    }
    __device__ __forceinline__ void finish(int thread, unsigned char* tile) const {
        if constexpr (kHeld) {
            #pragma unroll
            for (int round = 0; round < kRounds; ++round) {
                const int load = round * kThreads + thread;
                if (has(load)) *reinterpret_cast<T*>(tile + Layout::offset(extent(load), depth(load))) = held[round];
            }
        }
    }
};

// x = high + low but for 2^-22 of it.
__device__ __forceinline__ void split_tf32(unsigned bits, unsigned& high, unsigned& low) {
    const float value = __uint_as_float(bits);
    high = to_tf32(value);
    low = to_tf32(value - __uint_as_float(high));
}

extern "C" __global__ void __launch_bounds__(128, 5)
conv2d_fprop_implicit_gemm_n2c8i13x11_k12f3x3p1_fp32_nchw_264b8c21(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* y) {
    // Which tile. Blocks side by side sweep kRaster channel tiles, then groups, then columns.
    const int of_phase = gridDim.x;
    int tile = blockIdx.x;
    const int sweep = of_phase / kTilesM * kRaster;
    const int first_m = tile / sweep * kRaster;
    tile -= tile / sweep * sweep;
    const int swept = min(kRaster, kTilesM - first_m);
    const int m0 = (first_m + tile % swept) * kBlockM;
    tile /= swept;
    const int g = tile % kGroups;
    const int n0 = tile / kGroups * kBlockN;

    Product product;
    product.columns = batch * kOutH * kOutW;
    product.terms = kQ * kTapsH * kTapsW;

    CONVGEN_SHARED(shared);
    const int thread = threadIdx.x, lane = thread % 32;
    const int warp_m = thread / 32 % kWarpsM * kWarpM, warp_n = thread / 32 / kWarpsM * kWarpN;
    const in_t* const x_of_group = x + g * kXGroup;
    const in_t* const w_of_group = w + g * kWGroup;

    using XLoads = Loads<in_t, kBlockN, false, kXWidth>;
    using WLoads = Loads<in_t, kBlockM, true, kWWidth>;
    XLoads x_loads;
    WLoads w_loads;
    Column columns[XLoads::kRounds];  // beyond the last, the last: what is made of it is not stored, likewise of channels
    #pragma unroll
    for (int round = 0; round < XLoads::kRounds; ++round)
        columns[round] = product.column(min(n0 + XLoads::extent(round * kThreads + thread), product.columns - kXWidth));

    const auto start = [&](int step, unsigned char* stage) {
        #pragma unroll
        for (int round = 0; round < XLoads::kRounds; ++round) {
            const int load = round * kThreads + thread;
            if (!XLoads::has(load)) break;
            offset_t offset;
            const bool exists = find(columns[round], product.term(step * kBlockK + XLoads::depth(load)), offset);
            x_loads.start(round, load, x_of_group + offset, exists, stage);
        }
        #pragma unroll
        for (int round = 0; round < WLoads::kRounds; ++round) {
            const int load = round * kThreads + thread;
            if (!WLoads::has(load)) break;
            const Term at = product.term(step * kBlockK + WLoads::depth(load));
            const int m = min(m0 + WLoads::extent(load), kM - 1);
            w_loads.start(round, load, w_of_group + (m * kWM + at.w), at.exists, stage + XTile::kBytes);
        }
    };
    const auto finish = [&](unsigned char* stage) {
        x_loads.finish(thread, stage);
        w_loads.finish(thread, stage + XTile::kBytes);
    };

    // Two sets of fragments: one is multiplied while the other is loaded.
    unsigned xs[2][kWarpN / 16][4], ws[2][kWarpM / 8][2];
    const int x_lane = XTile::lane_offset<true>(lane, warp_n), w_lane = WTile::lane_offset<false>(lane, warp_m);
    const auto load_fragments = [&](const unsigned char* stage, int part, int into) {
        #pragma unroll
        for (int i = 0; i < kWarpN / 16; ++i)
            XTile::load<true>(xs[into][i][0], xs[into][i][1], xs[into][i][2], xs[into][i][3], stage, x_lane, i, part);
        #pragma unroll
        for (int j = 0; j < kWarpM / 8; j += 2)
            WTile::load<false>(ws[into][j][0], ws[into][j][1], ws[into][j + 1][0], ws[into][j + 1][1], stage + XTile::kBytes, w_lane, j / 2, part);
    };

    float acc[kWarpN / 16][kWarpM / 8][4] = {};
    float low[kWarpN / 16][kWarpM / 8][4] = {};  // products with a low part, which the large sums would swallow
    const auto multiply = [&](int from) {
        unsigned w_high[kWarpM / 8][2], w_low[kWarpM / 8][2];
        #pragma unroll
        for (int j = 0; j < kWarpM / 8; ++j) {
            split_tf32(ws[from][j][0], w_high[j][0], w_low[j][0]);
            split_tf32(ws[from][j][1], w_high[j][1], w_low[j][1]);
        }
        #pragma unroll
        for (int i = 0; i < kWarpN / 16; ++i) {
            unsigned x_high[4], x_low[4];
            #pragma unroll
            for (int r = 0; r < 4; ++r) split_tf32(xs[from][i][r], x_high[r], x_low[r]);
            #pragma unroll
            for (int j = 0; j < kWarpM / 8; ++j) {
                mma<kOperands>(low[i][j], x_low, w_high[j]);
                mma<kOperands>(low[i][j], x_high, w_low[j]);
                mma<kOperands>(acc[i][j], x_high, w_high[j]);
            }
        }
    };

    // The ring. Stage s holds step s, s + kStages, …; the one that was multiplied last is filled next.
    const int steps = (product.terms + kBlockK - 1) / kBlockK;
    const int first = 0, last = steps;
    #pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
        unsigned char* const stage = shared + s * kStageBytes;
        if (first + s < last) {
            start(first + s, stage);
            finish(stage);
        }
        cp_async_commit_group();
    }
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    if (first < last) load_fragments(shared, 0, 0);
    int reading = 0, filling = (kStages - 1) * kStageBytes;
    for (int step = first; step < last; ++step) {
        const bool more = step + kStages - 1 < last;
        #pragma unroll
        for (int part = 0; part < XTile::kSteps; ++part) {
            if (part == XTile::kSteps - 1) {  // on to the next stage
                if (more) finish(shared + filling);
                filling = reading;
                reading = reading == (kStages - 1) * kStageBytes ? 0 : reading + kStageBytes;
                cp_async_wait_group<kStages - 2>();
                __syncthreads();
            }
            if (part + 1 < XTile::kSteps || step + 1 < last) load_fragments(shared + reading, (part + 1) % XTile::kSteps, (part + 1) % 2);
            if (part == 0) {
                if (more) start(step + kStages - 1, shared + filling);
                cp_async_commit_group();
            }
            multiply(part % 2);
        }
    }
    #pragma unroll
    for (int i = 0; i < kWarpN / 16; ++i) {
        #pragma unroll
        for (int j = 0; j < kWarpM / 8; ++j) {
            #pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float sum = acc[i][j][r];
                acc[i][j][r] = sum - sum == 0.0f ? sum + low[i][j][r] : sum;  // an infinity has no low part
            }
        }
    }

    // Results pass through shared memory, a slice of 16 channels a warp, so that neighbours in y are written together.
    __syncthreads();
    offset_t* const places = reinterpret_cast<offset_t*>(shared + 30720);
    for (int n = thread; n < kBlockN; n += kThreads) places[n] = product.column(min(n0 + n, product.columns - 1)).y + g * kYGroup;
    __syncthreads();
    const Epilogue epilogue{bias};
    constexpr int kAlong = kWarpN, kPitch = kAlong + 4;
    float* const slice = reinterpret_cast<float*>(shared) + thread / 32 * (16 * kPitch);
    #pragma unroll
    for (int s = 0; s < kWarpM / 16; ++s) {
        #pragma unroll
        for (int i = 0; i < kAlong / 16; ++i) {
            #pragma unroll
            for (int r = 0; r < 8; ++r) {
                slice[(r / 4 * 8 + lane % 4 * 2 + r % 2) * kPitch + i * 16 + lane / 4 + r / 2 % 2 * 8] = acc[i][2 * s + r / 4][r % 4];
            }
        }
        __syncwarp();
        #pragma unroll 4
        for (int at = lane * kRun; at < 16 * kAlong; at += 32 * kRun) {
            const int across = at / kAlong, along = at % kAlong;
            const int n = warp_n + along, m = m0 + warp_m + s * 16 + across;
            if (n0 + n >= product.columns || m >= kM) continue;
            const offset_t offset = places[n] + m * kYM;
            const float* const results = slice + across * kPitch + along;
            Pack<out_t, kRun> pack;
            #pragma unroll
            for (int v = 0; v < kRun; ++v) pack.lane[v] = from_float<out_t>(epilogue.apply(y, offset + v, g * kM + m, results[v]));
            store_pack(y + offset, pack);
        }
        __syncwarp();
    }
}
