// attention_fprop_naive_attention_product_b2h4kv2q100k120d72_causal_fp16_bhsd_f18ae650
// attention batch=2 heads_q=4 heads_kv=2 seq_q=100 seq_kv=120 head_dim=72 causal=bottom_right dtype=fp16 lse=yes
// naive_attention: block=64,depth=16,softmax_threads=128
//
// Idea       Attention as it is written down: all logits into the workspace, the softmax of each row over them, their
//            product with v. It takes any size, and four trips to memory for every pair of a query and a key.
//            Vaswani et al.: Attention Is All You Need, 2017.
//
// Notation   x[i, j] = logit(scale * q[i] . k[j]), -inf where query i does not see key j
//            p[i, j] = exp(x[i, j] - max over j of x[i, j]),   o[i] = sum over j of p[i, j] v[j] / sum over j of p[i, j]
//            b batch element, 2; h query head, 4, which reads key and value head h / 2
//            i query, 100; j key, 120; d element of a row, 72 of q and k, 72 of v
//            logits   [b][h][i][j] float, in the workspace; the softmax replaces x by p
//            inverse  [b][h][i] float, in the workspace: 1 / sum over j of p[i, j], 0 for a row that sees no key
//
// Mapping    products  block 64 x 64 results, 256 threads of 4 x 4 each; grid.x column tiles (fastest), row tiles, (b, h)
//            softmax   a block of 128 threads a row
//
// Shared     products  [16][64 + 4] floats of either operand, transposed
//            softmax   a float a warp
//
// Numerics   fp32 FMA in the order of d and of j. The softmax in fp32; p is not rounded.

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
constexpr int kBlock = 64, kDepth = 16, kSoftmaxThreads = 128;

constexpr int kSide = kBlock / 4, kThreads = kSide * kSide, kPitch = kBlock + 4;

// acc[r][c] += sum over depths of a(row, depth) * b(column, depth), for the thread's rows and columns 4 * its own … + 3.
// Both return 0 beyond the ends.
template <bool kAlongColumns, typename A, typename B>
__device__ __forceinline__ void multiply(float (&acc)[4][4], float* shared, int depths, A a, B b) {
    const int thread = threadIdx.x, row = thread / kSide * 4, column = thread % kSide * 4;
    float* const rows = shared;
    float* const columns = shared + kDepth * kPitch;
    for (int first = 0; first < depths; first += kDepth) {
        for (int e = thread; e < kBlock * kDepth; e += kThreads) {
            rows[e % kDepth * kPitch + e / kDepth] = a(e / kDepth, first + e % kDepth);
            // Neighbouring threads read what lies side by side.
            if constexpr (kAlongColumns)
                columns[e / kBlock * kPitch + e % kBlock] = b(e % kBlock, first + e / kBlock);
            else
                columns[e % kDepth * kPitch + e / kDepth] = b(e / kDepth, first + e % kDepth);
        }
        __syncthreads();
        #pragma unroll
        for (int d = 0; d < kDepth; ++d) {
            const Pack<float, 4> as = load_pack<4>(rows + d * kPitch + row);
            const Pack<float, 4> bs = load_pack<4>(columns + d * kPitch + column);
            #pragma unroll
            for (int r = 0; r < 4; ++r) {
                #pragma unroll
                for (int c = 0; c < 4; ++c) acc[r][c] = fma_acc(as.lane[r], bs.lane[c], acc[r][c]);
            }
        }
        __syncthreads();
    }
}

// First kernel: logits.
extern "C" __global__ void __launch_bounds__(256)
attention_fprop_naive_attention_logits_b2h4kv2q100k120d72_causal_fp16_bhsd_f18ae650(const __half* __restrict__ q, const __half* __restrict__ k, float* __restrict__ logits) {
    const Sizes sizes{2, 100, 120};
    const Options options{};
    const int column_tiles = (sizes.keys + kBlock - 1) / kBlock, row_tiles = (sizes.queries + kBlock - 1) / kBlock;
    const int j0 = static_cast<int>(blockIdx.x % column_tiles) * kBlock;
    const int i0 = static_cast<int>(blockIdx.x / column_tiles % row_tiles) * kBlock;
    const int head = static_cast<int>(blockIdx.x / column_tiles / row_tiles), b = head / kHeadsQ, h = head % kHeadsQ;
    const in_t* const q_rows = q + head_offset<kHeadsQ, kHeadDim>(b, h, sizes.queries);
    const in_t* const k_rows = k + head_offset<kHeadsKv, kHeadDim>(b, h / kGroup, sizes.keys);

    CONVGEN_SHARED(shared);
    float acc[4][4] = {};
    multiply<false>(
        acc, reinterpret_cast<float*>(shared), kHeadDim,
        [&](int row, int d) {
            const bool exists = i0 + row < sizes.queries && d < kHeadDim;
            return exists ? to_float(q_rows[(i0 + row) * kRowStep<kHeadsQ, kHeadDim> + d]) : 0.0f;
        },
        [&](int column, int d) {
            const bool exists = j0 + column < sizes.keys && d < kHeadDim;
            return exists ? to_float(k_rows[(j0 + column) * kRowStep<kHeadsKv, kHeadDim> + d]) : 0.0f;
        });
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int i = i0 + threadIdx.x / kSide * 4 + r;
        if (i >= sizes.queries) continue;
        float* const row = logits + (static_cast<offset_t>(head) * sizes.queries + i) * sizes.keys;
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int j = j0 + threadIdx.x % kSide * 4 + c;
            if (j >= sizes.keys) continue;
            row[j] = options.sees(sizes, b, h, i, j) ? options.logit(sizes, acc[r][c], b, h, i, j) : -infinity();
        }
    }
}

// The largest, or the sum, over the block's threads.
template <bool kLargest>
__device__ __forceinline__ float over_block(float value, float* shared) {
    const auto join = [](float a, float b) { return kLargest ? fmaxf(a, b) : a + b; };
    #pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    #pragma unroll
    for (int warp = 1; warp < kSoftmaxThreads / 32; ++warp) value = join(value, shared[warp]);
    return value;
}

// Second kernel: softmax of each row, but for the division.
extern "C" __global__ void __launch_bounds__(128)
attention_fprop_naive_attention_softmax_b2h4kv2q100k120d72_causal_fp16_bhsd_f18ae650(float* __restrict__ logits, float* __restrict__ inverse, float* __restrict__ lse) {
    const Sizes sizes{2, 100, 120};
    CONVGEN_SHARED(shared);
    float* const scratch = reinterpret_cast<float*>(shared);
    float* const row = logits + static_cast<offset_t>(blockIdx.x) * sizes.keys;
    float largest = -infinity();
    for (int j = threadIdx.x; j < sizes.keys; j += kSoftmaxThreads) largest = fmaxf(largest, row[j]);
    largest = over_block<true>(largest, scratch);
    const bool all_hidden = largest == -infinity();  // or NaN
    if (all_hidden) largest = 0.0f;
    float total = 0.0f;
    for (int j = threadIdx.x; j < sizes.keys; j += kSoftmaxThreads) {
        const float weight = expf(row[j] - largest);
        row[j] = weight;
        total += weight;
    }
    total = over_block<false>(total, scratch);
    if (threadIdx.x != 0) return;
    const bool is_empty = all_hidden && total == 0.0f;
    inverse[blockIdx.x] = is_empty ? 0.0f : 1.0f / total;
    lse[blockIdx.x] = is_empty ? -infinity() : largest + logf(total);
}

// Third kernel: the product with v.
extern "C" __global__ void __launch_bounds__(256)
attention_fprop_naive_attention_product_b2h4kv2q100k120d72_causal_fp16_bhsd_f18ae650(const float* __restrict__ logits, const float* __restrict__ inverse, const __half* __restrict__ v, __half* __restrict__ o) {
    const Sizes sizes{2, 100, 120};
    constexpr int kColumnTiles = (kHeadDimV + kBlock - 1) / kBlock;
    const int row_tiles = (sizes.queries + kBlock - 1) / kBlock;
    const int d0 = static_cast<int>(blockIdx.x % kColumnTiles) * kBlock;
    const int i0 = static_cast<int>(blockIdx.x / kColumnTiles % row_tiles) * kBlock;
    const int head = static_cast<int>(blockIdx.x / kColumnTiles / row_tiles), b = head / kHeadsQ, h = head % kHeadsQ;
    const float* const weights = logits + static_cast<offset_t>(head) * sizes.queries * sizes.keys;
    const in_t* const v_rows = v + head_offset<kHeadsKv, kHeadDimV>(b, h / kGroup, sizes.keys);

    CONVGEN_SHARED(shared);
    float acc[4][4] = {};
    multiply<true>(
        acc, reinterpret_cast<float*>(shared), sizes.keys,
        [&](int row, int j) {
            const bool exists = i0 + row < sizes.queries && j < sizes.keys;
            return exists ? weights[static_cast<offset_t>(i0 + row) * sizes.keys + j] : 0.0f;
        },
        [&](int column, int j) {
            const bool exists = d0 + column < kHeadDimV && j < sizes.keys;
            return exists ? to_float(v_rows[j * kRowStep<kHeadsKv, kHeadDimV> + d0 + column]) : 0.0f;
        });
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int i = i0 + threadIdx.x / kSide * 4 + r;
        if (i >= sizes.queries) continue;
        const float scale = inverse[static_cast<offset_t>(head) * sizes.queries + i];
        out_t* const row = o + head_offset<kHeadsQ, kHeadDimV>(b, h, sizes.queries) + i * kRowStep<kHeadsQ, kHeadDimV>;
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int d = d0 + threadIdx.x % kSide * 4 + c;
            if (d < kHeadDimV) row[d] = from_float<out_t>(acc[r][c] * scale);
        }
    }
}
