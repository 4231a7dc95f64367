// attention_fprop_flash_attention_b2h4kv2q100k120d72_causal_fp16_bhsd_810ae8aa
// attention batch=2 heads_q=4 heads_kv=2 seq_q=100 seq_kv=120 head_dim=72 causal=bottom_right dtype=fp16 lse=yes
// flash_attention: products=mma,row_tiles=2,warps_q=4,warps_kv=1,block_kv=64,buffers=1,q_in_registers=no,pack_heads=no,splits=1
//
// Idea       A block keeps its queries, walks over the keys they see, and never writes a score: softmax is a ratio of two
//            sums over keys, which can grow block by block if both shrink by the same factor when a larger score comes.
//            Milakov, Gimelshein: Online normalizer calculation for softmax, 2018.
//            Dao: FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, 2023.
//
// Notation   x[r, j] = logit(scale * q[r] . k[j]), -inf where row r does not see key j
//            shift[r] about the largest x met so far (device: `Softmax`);  p[r, j] = e^(x[r, j] - shift[r])
//            total[r] = sum over j of p[r, j];  acc[r] = sum over j of p[r, j] v[j];  o[r] = acc[r] / total[r]
//            b batch element, 2; h query head, 4, which reads key and value head h / 2
//            i query, 100; j key, 120; d element of a row, 72 of q and k, 72 of v
//            r row of a tile: a query
//
// Mapping    block   128 rows, 64 keys a step, 128 threads
//            warp    32 rows x 64 keys a step
//            thread  in each 16 x 8 tile of results, lane l has rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next
//            grid.x  head of 8 (fastest), tile of rows, those with most keys first; then the next heads
//
// Shared     rows of 16-byte pieces, an odd number of them, so that eight rows lie in different banks
//            +- q ---------------+- k, 1 of -----------+- v, 1 of -----------+
//            | [128][88]         | [64][88]          | [64][72]          |
//            +-------------------+-------------------+-------------------+   __half
//            k and v of coming steps travel by cp.async, 1 of them at a time. In the end: o, row by row.
//
// Numerics   mma.sync with fp32 sums; p is rounded to __half for its product with v, and summed unrounded. The softmax in fp32.
//            shift lags behind the largest x by up to kSlack, so that acc is seldom rescaled; o is the same ratio whatever it is.

// fp32: storage and arithmetic are the same.
__device__ __forceinline__ float to_float(float v) { return v; }

template <typename T>
__device__ __forceinline__ T from_float(float v);

template <>
__device__ __forceinline__ float from_float<float>(float v) { return v; }

// fp16: stored as __half, computed in fp32; one rounding, to nearest even, when a result is stored.
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }

template <>
__device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }

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

// 2^x as the hardware approximates it: to a relative error of 2^-22. Results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef CONVGEN_SIM
    return exp2f(x);
#else
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#endif
}

// tanh to an absolute error of 2^-21.
__device__ __forceinline__ float tanh_fast(float x) {
    return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(x * 2.88539008f));  // e^2x = 2^(x * 2 log2 e)
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

// Two numbers rounded to fp16 or bf16 in one register, the first in its lower half: neighbours as device/mma.cuh has them.
template <MmaType kType, typename T>
__device__ __forceinline__ unsigned to_pair(float first, float second) {
    static_assert(kType == kMmaFp16 || kType == kMmaBf16, "a pair is of 16-bit numbers");
    unsigned pair;
#ifdef CONVGEN_SIM
    const T halves[2] = {from_float<T>(first), from_float<T>(second)};
    __builtin_memcpy(&pair, halves, 4);
#elif __CUDA_ARCH__ >= 800
    if constexpr (kType == kMmaFp16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    if constexpr (kType == kMmaBf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
    asm("{.reg .f16 lower, upper;\n"
        "cvt.rn.f16.f32 lower, %1;\n"
        "cvt.rn.f16.f32 upper, %2;\n"
        "mov.b32 %0, {lower, upper};}" : "=r"(pair) : "f"(first), "f"(second));
#endif
    return pair;
}

using in_t = __half;
using out_t = __half;
using offset_t = int;

constexpr int kHeadsQ = 4, kHeadsKv = 2, kGroup = kHeadsQ / kHeadsKv;
constexpr int kHeadDim = 72, kHeadDimV = 72;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

struct Sizes {
    int batch, queries, keys;

    // The key on the diagonal of query 0.
    __device__ __forceinline__ int diagonal() const { return keys - queries; }
};

// Of a tensor of kHeads heads and `length` rows of kWidth elements: where head h of batch element b begins, and how far
// apart its rows lie. BHSD in memory.
template <int kHeads, int kWidth>
__device__ __forceinline__ offset_t head_offset(int b, int h, int length) {
    return (static_cast<offset_t>(b) * kHeads + h) * length * kWidth;
}
template <int kHeads, int kWidth>
constexpr offset_t kRowStep = kWidth;

// Which keys a query sees, and what becomes of a score before the softmax: logits, in units of e.
constexpr float kScale = 0.11785113019775793f;

struct Options {

    // Whether query i sees key j as far as the window tells.
    __device__ __forceinline__ bool in_window(const Sizes& sizes, int i, int j) const {
        return j < sizes.keys && j <= i + sizes.diagonal() + 0;
    }

    __device__ __forceinline__ bool sees(const Sizes& sizes, int b, int h, int i, int j) const {
        return in_window(sizes, i, j);
    }

    // The logit of a score; i and j exist.
    __device__ __forceinline__ float logit(const Sizes& sizes, float score, int b, int h, int i, int j) const {
        float x = score * kScale;
        return x;
    }
};

// Tunables.
constexpr int kRowTiles = 2, kWarpsQ = 4, kWarpsKv = 1;  // 16 rows each
constexpr int kBlockKv = 64;
constexpr int kBuffers = 1;
constexpr bool kQInRegisters = false;
constexpr int kPack = 1;
constexpr int kHeadsTogether = 8;

constexpr int kWarpRows = 16 * kRowTiles, kBlockQ = kWarpsQ * kWarpRows, kWarpKeys = kBlockKv / kWarpsKv;
constexpr int kThreads = 32 * kWarpsQ * kWarpsKv;
constexpr int kUnits = kHeadsQ / kPack;  // heads, or groups of them, that a block works on one of
constexpr int kTilesK = kWarpKeys / 8, kTilesV = (kHeadDimV + 7) / 8;
constexpr int kWidthK = 80, kWidthV = 72;    // of a row in shared memory, zeros behind the end
constexpr int kPitchK = 88, kPitchV = 72;
constexpr int kAhead = 2 * kBuffers - 1;  // tiles of k and v under way

using Scores = float[kRowTiles][kTilesK][4];
using Sums = float[kRowTiles][kTilesV][4];

// Softmax over keys that come in steps. Scores and shifts are q . k: their scale is part of the exponent's FMA.
constexpr float kLog2E = 1.44269504f;
constexpr float kLogit = kScale;  // of a score of 1
constexpr float kFactor = 0.17002324759960175f;  // of a score, to an exponent of 2
constexpr float kSlack = 8.0f / kFactor;  // weights stay below 2^8
constexpr float kLargest = 16777216.0f;  // shifts, times kFactor, up to which that product is rounded by 2^0.5 at most

__device__ __forceinline__ float shrinkage(float before, float after) { return exp2_fast((before - after) * kFactor); }
// What to take away from logits of -inf: anything but -inf leaves weights of 0.
__device__ __forceinline__ float finite(float shift) { return shift == -infinity() ? 0.0f : shift; }

// Of the rows of a warp that belong to a thread, where row `row` lies.
__device__ __forceinline__ int row_of(int row) { return row / 2 * 16 + row % 2 * 8 + threadIdx.x % 32 / 4; }
// Of a warp's keys, the one that element e of a thread's result in tile n belongs to.
__device__ __forceinline__ int key_of(int n, int e) { return n * 8 + threadIdx.x % 4 * 2 + e % 2; }

// Which of kWarpKeys keys from j0 the kWarpRows rows from r0 see.
struct Sight {
    int r0, row_count, j0;
    int first_query, last_query;
    int lowest, highest;    // the first and the last key that all of the rows see
    int any_from, any_to;   // that any of them sees

    __device__ __forceinline__ Sight(const Sizes& sizes, int r0, int row_count, int j0)
        : r0(r0), row_count(row_count), j0(j0), first_query(r0 / kPack), last_query((r0 + kWarpRows - 1) / kPack),
          lowest(0),
          highest(min(sizes.keys - 1, first_query + sizes.diagonal() + 0)),
          any_from(0),
          any_to(min(sizes.keys - 1, last_query + sizes.diagonal() + 0)) {}

    __device__ __forceinline__ bool sees_any() const { return j0 <= any_to && j0 + kWarpKeys > any_from && r0 < row_count; }
    __device__ __forceinline__ bool sees_all() const { return j0 >= lowest && j0 + kWarpKeys - 1 <= highest; }
};

// Scores to logits, -inf where a row does not see a key.
__device__ __forceinline__ void to_logits(Scores& scores, const Sight& sight, const Options& options, const Sizes& sizes, int b, int h0) {
    if (sight.sees_all()) {
        return;
    }
    #pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
        const int r = sight.r0 + row_of(row), i = r / kPack, h = h0 + r % kPack;
        #pragma unroll
        for (int n = 0; n < kTilesK; ++n) {
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = sight.j0 + key_of(n, e);
                float& score = scores[row / 2][n][row % 2 * 2 + e];
                const bool seen = r < sight.row_count && options.sees(sizes, b, h, i, j);
                score = seen ? score : -infinity();
            }
        }
    }
}

// State of the rows of a warp that belong to a thread. Lanes of a quad share rows: shift is the same in all four, total
// the sum of each one's own weights until `add_lanes`.
struct Softmax {
    float shift[2 * kRowTiles], total[2 * kRowTiles];
    bool is_large = false;  // whether a shift is beyond kLargest

    __device__ __forceinline__ Softmax() {
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            shift[row] = -infinity();
            total[row] = 0.0f;
        }
    }

    // Logits become weights. Where one exceeds the shift by more than the slack, the shift moves and the sums shrink.
    __device__ __forceinline__ void weigh(Scores& x, Sums& acc) {
        float factor[2 * kRowTiles];
        bool moves = false;
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            const float (&tiles)[kTilesK][4] = x[row / 2];
            float largest = fmaxf(tiles[0][row % 2 * 2], tiles[0][row % 2 * 2 + 1]);
            #pragma unroll
            for (int n = 1; n < kTilesK; ++n) largest = fmaxf(largest, fmaxf(tiles[n][row % 2 * 2], tiles[n][row % 2 * 2 + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const bool moved = largest - shift[row] > kSlack;
            factor[row] = moved ? shrinkage(shift[row], largest) : 1.0f;
            shift[row] = moved ? largest : shift[row];
            total[row] *= factor[row];
            moves |= moved;
        }
        if (__any_sync(0xffffffffu, moves)) {
            is_large = false;
            #pragma unroll
            for (int row = 0; row < 2 * kRowTiles; ++row) {
                scale_row(acc, row, factor[row]);
                is_large |= fabsf(finite(shift[row]) * kFactor) > kLargest;
            }
        }
        if (is_large) {  // the exponent's FMA would meet a product rounded by more than weights can bear
            #pragma unroll
            for (int row = 0; row < 2 * kRowTiles; ++row) {
                #pragma unroll
                for (int n = 0; n < kTilesK; ++n) {
                    x[row / 2][n][row % 2 * 2] -= finite(shift[row]);
                    x[row / 2][n][row % 2 * 2 + 1] -= finite(shift[row]);
                }
            }
        }
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            const float taken = is_large ? 0.0f : finite(shift[row]) * kFactor;
            #pragma unroll
            for (int n = 0; n < kTilesK; ++n) {
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& weight = x[row / 2][n][row % 2 * 2 + e];
                    weight = exp2_fast(fmaf(weight, kFactor, -taken));
                    total[row] += weight;
                }
            }
        }
    }

    static __device__ __forceinline__ void scale_row(Sums& acc, int row, float factor) {
        #pragma unroll
        for (int n = 0; n < kTilesV; ++n) {
            acc[row / 2][n][row % 2 * 2] *= factor;
            acc[row / 2][n][row % 2 * 2 + 1] *= factor;
        }
    }

    __device__ __forceinline__ void add_lanes() {
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            total[row] += __shfl_xor_sync(0xffffffffu, total[row], 1);
            total[row] += __shfl_xor_sync(0xffffffffu, total[row], 2);
        }
    }
};

// The logarithm of a row's sum; the shift is a logit.
__device__ __forceinline__ float log_of(float shift, float total) { return total == 0.0f ? -infinity() : shift + logf(total); }

// The two products on tensor cores. A result tile of the first is, rounded, an operand of the second: no lane needs
// another's weights.
constexpr MmaType kMma = kMmaFp16;
constexpr int kStepsK = kWidthK / 16;  // of 16 elements of a row

// A warp's rows of q, as operands: held, or loaded again for every tile of keys where registers are short.
struct QueryTile {
    const in_t* rows;
    unsigned held[kQInRegisters ? kStepsK : 1][kRowTiles][4];

    __device__ __forceinline__ explicit QueryTile(const in_t* tile) {
        const int lane = threadIdx.x % 32;
        rows = tile + lane % 16 * kPitchK + lane / 16 * 8;
        if constexpr (kQInRegisters) {
            #pragma unroll
            for (int step = 0; step < kStepsK; ++step) load(held[step], step);
        }
    }

    __device__ __forceinline__ void operand(unsigned (&q)[kRowTiles][4], int step) const {
        if constexpr (kQInRegisters) {
            #pragma unroll
            for (int i = 0; i < 4 * kRowTiles; ++i) q[i / 4][i % 4] = held[step][i / 4][i % 4];
        } else {
            load(q, step);
        }
    }

    __device__ __forceinline__ void load(unsigned (&q)[kRowTiles][4], int step) const {
        #pragma unroll
        for (int m = 0; m < kRowTiles; ++m) ldmatrix(q[m][0], q[m][1], q[m][2], q[m][3], rows + m * 16 * kPitchK + step * 16);
    }
};

// scores += q k^T, of the warp's rows and its keys.
__device__ __forceinline__ void add_scores(Scores& scores, const QueryTile& queries, const in_t* k_tile) {
    const int lane = threadIdx.x % 32;
    const in_t* const rows = k_tile + (lane / 16 * 8 + lane % 8) * kPitchK + lane / 8 % 2 * 8;
    #pragma unroll
    for (int step = 0; step < kStepsK; ++step) {
        unsigned q[kRowTiles][4];
        queries.operand(q, step);
        #pragma unroll
        for (int n = 0; n < kTilesK; n += 2) {
            unsigned k0[2], k1[2];
            ldmatrix(k0[0], k0[1], k1[0], k1[1], rows + n * 8 * kPitchK + step * 16);
            #pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                mma<kMma>(scores[m][n], q[m], k0);
                mma<kMma>(scores[m][n + 1], q[m], k1);
            }
        }
    }
}

// acc += p v, of the warp's rows and its keys.
__device__ __forceinline__ void add_weighted(Sums& acc, const Scores& p, const in_t* v_tile) {
    const int lane = threadIdx.x % 32;
    const in_t* const rows = v_tile + lane % 16 * kPitchV + lane / 16 * 8;
    #pragma unroll
    for (int step = 0; step < kTilesK / 2; ++step) {
        unsigned weights[kRowTiles][4];
        #pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float (&tile)[4] = p[m][2 * step + i / 2];
                weights[m][i] = to_pair<kMma, in_t>(tile[i % 2 * 2], tile[i % 2 * 2 + 1]);
            }
        }
        #pragma unroll
        for (int n = 0; n + 1 < kTilesV; n += 2) {
            unsigned v0[2], v1[2];
            ldmatrix<true>(v0[0], v0[1], v1[0], v1[1], rows + step * 16 * kPitchV + n * 8);
            #pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                mma<kMma>(acc[m][n], weights[m], v0);
                mma<kMma>(acc[m][n + 1], weights[m], v1);
            }
        }
        if constexpr (kTilesV % 2 == 1) {
            unsigned v0[2];
            // Lanes from 16 on give no address that counts; theirs stays within the row.
            ldmatrix<true>(v0[0], v0[1], v_tile + (step * 16 + lane % 16) * kPitchV + (kTilesV - 1) * 8);
            #pragma unroll
            for (int m = 0; m < kRowTiles; ++m) mma<kMma>(acc[m][kTilesV - 1], weights[m], v0);
        }
    }
}

constexpr int kPitchO = 72;  // elements, of a row of o in shared memory

// A warp's rows of o, through shared memory, so that neighbouring threads write what lies side by side.
template <typename Place>
__device__ __forceinline__ void store_rows(const Sums& acc, out_t* staged, Place place) {
    #pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
        #pragma unroll
        for (int n = 0; n < kTilesV; ++n) {
            Pack<out_t, 2> pair;
            pair.lane[0] = from_float<out_t>(acc[row / 2][n][row % 2 * 2]);
            pair.lane[1] = from_float<out_t>(acc[row / 2][n][row % 2 * 2 + 1]);
            store_pack(staged + row_of(row) * kPitchO + key_of(n, 0), pair);
        }
    }
    __syncwarp();
    constexpr int kLargest = 16 / sizeof(out_t), kDivides = kHeadDimV & -kHeadDimV;
    constexpr int kPiece = kDivides < kLargest ? kDivides : kLargest, kPerRow = kHeadDimV / kPiece;
    #pragma unroll
    for (int first = 0; first < kWarpRows * kPerRow; first += 32) {
        const int piece = first + threadIdx.x % 32, row = piece / kPerRow, column = piece % kPerRow * kPiece;
        if (kWarpRows * kPerRow % 32 != 0 && row >= kWarpRows) break;
        out_t* const destination = place(row);
        if (destination != nullptr) store_pack(destination + column, load_pack<kPiece>(staged + row * kPitchO + column));
    }
}

// A tile's rows from global to shared memory in pieces of up to 16 bytes. What lies behind a row's end becomes zero, and
// so do rows that do not exist, since a hidden key's weight of 0 must meet a number.
template <int kRows, int kLength, int kWidth, int kPitch>
struct Copy {
    static constexpr int kLargest = 16 / sizeof(in_t), kDivides = kLength & -kLength;
    static constexpr int kPiece = kDivides < kLargest ? kDivides : kLargest;
    static constexpr int kPerRow = kWidth / kPiece, kPieces = kRows * kPerRow;
    static constexpr int kRounds = (kPieces + kThreads - 1) / kThreads;
    static constexpr bool kWholeRows = kThreads % kPerRow == 0;  // a thread's pieces lie below each other

    // source(row) is where a row begins; exists(row) whether it does.
    template <typename Source, typename Exists>
    static __device__ __forceinline__ void rows(in_t* shared, Source source, Exists exists) {
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int piece = round * kThreads + threadIdx.x;
            if (kPieces % kThreads != 0 && piece >= kPieces) break;
            const int row = kWholeRows ? round * (kThreads / kPerRow) + threadIdx.x / kPerRow : piece / kPerRow;
            const int column = (kWholeRows ? threadIdx.x : piece) % kPerRow * kPiece;
            copy(shared + row * kPitch + column, source(row) + column, column < kLength && exists(row));
        }
    }

    // Rows that lie `step` elements apart, of which the first `count` exist.
    static __device__ __forceinline__ void rows(in_t* shared, const in_t* first, offset_t step, int count) {
        if (kWholeRows && kPieces % kThreads == 0 && kLength == kWidth && count >= kRows) {
            const int row = threadIdx.x / kPerRow, column = threadIdx.x % kPerRow * kPiece;
            const in_t* const source = first + row * step + column;
            in_t* const destination = shared + row * kPitch + column;
            #pragma unroll
            for (int round = 0; round < kRounds; ++round) {
                const int below = round * (kThreads / kPerRow);
                copy(destination + below * kPitch, source + below * step, true);
            }
        } else {
            rows(shared, [&](int row) { return first + row * step; }, [&](int row) { return row < count; });
        }
    }

    static __device__ __forceinline__ void copy(in_t* destination, const in_t* source, bool exists) {
        if constexpr (kPiece * sizeof(in_t) >= 4) {
            cp_async<kPiece * sizeof(in_t)>(destination, source, exists ? kPiece * sizeof(in_t) : 0);
        } else {
            *destination = exists ? *source : from_float<in_t>(0.0f);
        }
    }
};

extern "C" __global__ void __launch_bounds__(128, 2)
attention_fprop_flash_attention_b2h4kv2q100k120d72_causal_fp16_bhsd_810ae8aa(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v, __half* __restrict__ o, float* __restrict__ lse) {
    const Sizes sizes{2, 100, 120};
    const Options options{};
    const int warp_q = threadIdx.x / 32 / kWarpsKv, warp_kv = threadIdx.x / 32 % kWarpsKv;
    const int row_count = sizes.queries * kPack, tiles = (row_count + kBlockQ - 1) / kBlockQ;

    const int units_before = static_cast<int>(blockIdx.x / (tiles * kHeadsTogether)) * kHeadsTogether;
    const int units_here = min(sizes.batch * kUnits - units_before, kHeadsTogether);
    const int place = static_cast<int>(blockIdx.x) - units_before * tiles;
    const int tile = tiles - 1 - place / units_here;
    const int unit = units_before + place % units_here;
    const int b = unit / kUnits, h0 = unit % kUnits * kPack;  // h0: the first of the heads
    const int r0 = tile * kBlockQ;

    // The steps over keys that any row of the tile sees.
    int begin = 0, end = (sizes.keys + kBlockKv - 1) / kBlockKv;
    const int last_query = min(r0 + kBlockQ - 1, row_count - 1) / kPack;
    end = min(end, (max(last_query + sizes.diagonal() + 0 + 1, 0) + kBlockKv - 1) / kBlockKv);
    const int steps = max(end - begin, 0);

    CONVGEN_SHARED(shared);
    in_t* const q_tile = reinterpret_cast<in_t*>(shared);
    in_t* const k_tiles = q_tile + kBlockQ * kPitchK;
    in_t* const v_tiles = k_tiles + kBuffers * kBlockKv * kPitchK;

    const in_t* const k_rows = k + head_offset<kHeadsKv, kHeadDim>(b, h0 / kGroup, sizes.keys);
    const in_t* const v_rows = v + head_offset<kHeadsKv, kHeadDimV>(b, h0 / kGroup, sizes.keys);
    // Tile 2 * step is of k, the next of v.
    const auto fetch = [&](int number) {
        const int buffer = number / 2 % kBuffers, j0 = (begin + number / 2) * kBlockKv, count = sizes.keys - j0;
        constexpr offset_t kStepK = kRowStep<kHeadsKv, kHeadDim>, kStepV = kRowStep<kHeadsKv, kHeadDimV>;
        in_t* const k_tile = k_tiles + buffer * kBlockKv * kPitchK;
        in_t* const v_tile = v_tiles + buffer * kBlockKv * kPitchV;
        if (number / 2 < steps && number % 2 == 0)
            Copy<kBlockKv, kHeadDim, kWidthK, kPitchK>::rows(k_tile, k_rows + j0 * kStepK, kStepK, count);
        if (number / 2 < steps && number % 2 == 1)
            Copy<kBlockKv, kHeadDimV, kWidthV, kPitchV>::rows(v_tile, v_rows + j0 * kStepV, kStepV, count);
        cp_async_commit_group();
    };
    // Wait for tile `number`, then let the one that takes the place of tile number - 1 come.
    const auto next_tile = [&](int number) {
        cp_async_wait_group<kAhead - 1>();
        __syncthreads();
        fetch(number + kAhead);
    };

    Copy<kBlockQ, kHeadDim, kWidthK, kPitchK>::rows(
        q_tile,
        [&](int row) {
            const int i = (r0 + row) / kPack, h = h0 + (r0 + row) % kPack;
            return q + head_offset<kHeadsQ, kHeadDim>(b, h, sizes.queries) + i * kRowStep<kHeadsQ, kHeadDim>;
        },
        [&](int row) { return r0 + row < row_count; });
    #pragma unroll
    for (int number = 0; number < kAhead; ++number) fetch(number);
    cp_async_wait_group<kAhead - 1>();
    __syncthreads();

    const int r_warp = r0 + warp_q * kWarpRows;
    QueryTile queries(q_tile + warp_q * kWarpRows * kPitchK);
    Softmax softmax;
    Sums acc = {};
    for (int step = 0; step < steps; ++step) {
        const int buffer = step % kBuffers, j0 = (begin + step) * kBlockKv + warp_kv * kWarpKeys;
        const Sight sight(sizes, r_warp, row_count, j0);
        Scores scores = {};
        next_tile(2 * step);
        if (sight.sees_any()) {
            add_scores(scores, queries, k_tiles + (buffer * kBlockKv + warp_kv * kWarpKeys) * kPitchK);
            to_logits(scores, sight, options, sizes, b, h0);
            softmax.weigh(scores, acc);
        }
        next_tile(2 * step + 1);
        if (sight.sees_any())
            add_weighted(acc, scores, v_tiles + (buffer * kBlockKv + warp_kv * kWarpKeys) * kPitchV);
    }
    softmax.add_lanes();
    cp_async_wait_group<0>();
    __syncthreads();  // shared memory has another use now

    #pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
        float& total = softmax.total[row];
        float shift = softmax.shift[row] * kLogit;
        const int r = r_warp + row_of(row), h = h0 + r % kPack;
        float factor = 1.0f;
        Softmax::scale_row(acc, row, total == 0.0f ? 0.0f : factor / total);
        if (r < row_count && threadIdx.x % 4 == 0)
            lse[(static_cast<offset_t>(b) * kHeadsQ + h) * sizes.queries + r / kPack] = log_of(shift, total);
    }
    out_t* const staged = reinterpret_cast<out_t*>(shared + 0) + warp_q * kWarpRows * kPitchO;
    store_rows(acc, staged, [&](int row) {
        const int r = r_warp + row, i = r / kPack, h = h0 + r % kPack;
        out_t* const head = o + head_offset<kHeadsQ, kHeadDimV>(b, h, sizes.queries);
        return r < row_count ? head + i * kRowStep<kHeadsQ, kHeadDimV> : nullptr;
    });
}
