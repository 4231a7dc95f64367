// attention_fprop_flash_attention_b1h1q4k4d8_fp32_bhsd_b491397b
// attention batch=1 heads_q=1 seq_q=4 head_dim=8
// flash_attention: products=fma,row_tiles=1,warps_q=1,warps_kv=4,block_kv=64,buffers=2,q_in_registers=no,pack_heads=no,splits=1
//
// Idea       A block keeps its queries, walks over the keys they see, and never writes a score: softmax is a ratio of two
//            sums over keys, which can grow block by block if both shrink by the same factor when a larger score comes.
//            Milakov, Gimelshein: Online normalizer calculation for softmax, 2018.
//            Dao: FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, 2023.
//
// Notation   x[r, j] = logit(scale * q[r] . k[j]), -inf where row r does not see key j
//            shift[r] about the largest x met so far (device: `Softmax`);  p[r, j] = e^(x[r, j] - shift[r])
//            total[r] = sum over j of p[r, j];  acc[r] = sum over j of p[r, j] v[j];  o[r] = acc[r] / total[r]
//            b batch element, 1; h query head, 1, which reads key and value head h / 1
//            i query, 4; j key, 4; d element of a row, 8 of q and k, 8 of v
//            r row of a tile: a query
//
// Mapping    block   16 rows, 64 keys a step, 128 threads
//            warp    16 rows x 16 keys a step; 4 warps share rows, their sums are joined at the end
//            thread  in each 16 x 8 tile of results, lane l has rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next
//            grid.x  head of 1 (fastest), tile of rows; then the next heads
//
// Shared     rows of 16-byte pieces, an odd number of them, so that eight rows lie in different banks
//            +- q ---------------+- k, 2 of -----------+- v, 2 of -----------+- p -----------------+
//            | [16][12]          | [64][12]          | [64][12]          | of each warp, float |
//            +-------------------+-------------------+-------------------+---------------------+   float
//            k and v of coming steps travel by cp.async, 3 of them at a time. In the end: o, row by row, and the warps' sums.
//
// Numerics   fp32 FMA throughout.
//            shift lags behind the largest x by up to kSlack, so that acc is seldom rescaled; o is the same ratio whatever it is.

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

using in_t = float;
using out_t = float;
using offset_t = int;

constexpr int kHeadsQ = 1, kHeadsKv = 1, kGroup = kHeadsQ / kHeadsKv;
constexpr int kHeadDim = 8, kHeadDimV = 8;

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
constexpr float kScale = 0.35355339059327373f;

struct Options {

    // Whether query i sees key j as far as the window tells.
    __device__ __forceinline__ bool in_window(const Sizes& sizes, int i, int j) const {
        return j < sizes.keys;
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
constexpr int kRowTiles = 1, kWarpsQ = 1, kWarpsKv = 4;  // 16 rows each
constexpr int kBlockKv = 64;
constexpr int kBuffers = 2;
constexpr bool kQInRegisters = false;
constexpr int kPack = 1;
constexpr int kHeadsTogether = 1;

constexpr int kWarpRows = 16 * kRowTiles, kBlockQ = kWarpsQ * kWarpRows, kWarpKeys = kBlockKv / kWarpsKv;
constexpr int kThreads = 32 * kWarpsQ * kWarpsKv;
constexpr int kUnits = kHeadsQ / kPack;  // heads, or groups of them, that a block works on one of
constexpr int kTilesK = kWarpKeys / 8, kTilesV = (kHeadDimV + 7) / 8;
constexpr int kWidthK = 8, kWidthV = 8;    // of a row in shared memory, zeros behind the end
constexpr int kPitchK = 12, kPitchV = 12;
constexpr int kAhead = 2 * kBuffers - 1;  // tiles of k and v under way

using Scores = float[kRowTiles][kTilesK][4];
using Sums = float[kRowTiles][kTilesV][4];

// Softmax over keys that come in steps. A score's unit is that of q . k, a shift's 2: scale * log2(e) is part of the exponent's FMA.
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;
constexpr float kSlack = 8.0f;  // weights stay below 2^8
constexpr float kFactor = 0.510069727897644f;  // scale * log2(e)

__device__ __forceinline__ float shift_of(float score) { return score * kFactor; }
__device__ __forceinline__ float weight_of(float score, float shift) { return exp2_fast(fmaf(score, kFactor, -shift)); }
__device__ __forceinline__ float shrinkage(float before, float after) { return exp2_fast(before - after); }
__device__ __forceinline__ float log_of(float shift, float total) {
    return total == 0.0f ? -infinity() : (shift + log2f(total)) * kLn2;
}
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
          highest(sizes.keys - 1),
          any_from(0),
          any_to(sizes.keys - 1) {}

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
            largest = shift_of(fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2)));
            const bool moved = largest > shift[row] + kSlack;
            factor[row] = moved ? shrinkage(shift[row], largest) : 1.0f;
            shift[row] = moved ? largest : shift[row];
            total[row] *= factor[row];
            moves |= moved;
        }
        if (__any_sync(0xffffffffu, moves)) {
            #pragma unroll
            for (int row = 0; row < 2 * kRowTiles; ++row) scale_row(acc, row, factor[row]);
        }
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            const float taken = finite(shift[row]);
            #pragma unroll
            for (int n = 0; n < kTilesK; ++n) {
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& weight = x[row / 2][n][row % 2 * 2 + e];
                    weight = weight_of(weight, taken);
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

// The two products by FMA, with results shared out as tensor cores do it. Weights go through shared memory, since a
// thread needs those of its rows for all keys.
constexpr int kPitchP = 20;  // floats, of a row of a warp's weights
constexpr int kVector = 16 / sizeof(in_t);

struct QueryTile {
    const in_t* rows;

    __device__ __forceinline__ explicit QueryTile(const in_t* tile) : rows(tile) {}
};

// scores += q k^T, of the warp's rows and its keys.
__device__ __forceinline__ void add_scores(Scores& scores, const QueryTile& queries, const in_t* k_tile) {
    #pragma unroll 1
    for (int d = 0; d < kWidthK; d += kVector) {
        Pack<in_t, kVector> q[2 * kRowTiles];
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) q[row] = load_pack<kVector>(queries.rows + row_of(row) * kPitchK + d);
        #pragma unroll
        for (int n = 0; n < kTilesK; ++n) {
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                const Pack<in_t, kVector> k = load_pack<kVector>(k_tile + key_of(n, e) * kPitchK + d);
                #pragma unroll
                for (int row = 0; row < 2 * kRowTiles; ++row) {
                    float& score = scores[row / 2][n][row % 2 * 2 + e];
                    #pragma unroll
                    for (int i = 0; i < kVector; ++i) score = fma_acc(to_float(q[row].lane[i]), to_float(k.lane[i]), score);
                }
            }
        }
    }
}

// acc += p v, of the warp's rows and its keys.
__device__ __forceinline__ void add_weighted(Sums& acc, const Scores& p, const in_t* v_tile, float* p_tile) {
    __syncwarp();  // the weights of the step before have been read
    #pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
        #pragma unroll
        for (int n = 0; n < kTilesK; ++n) {
            const Pack<float, 2> pair = { {p[row / 2][n][row % 2 * 2], p[row / 2][n][row % 2 * 2 + 1]} };
            store_pack(p_tile + row_of(row) * kPitchP + key_of(n, 0), pair);
        }
    }
    __syncwarp();
    #pragma unroll 1
    for (int j = 0; j < kWarpKeys; j += 4) {
        Pack<float, 4> weights[2 * kRowTiles];
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) weights[row] = load_pack<4>(p_tile + row_of(row) * kPitchP + j);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int n = 0; n < kTilesV; ++n) {
                const Pack<in_t, 2> v = load_pack<2>(v_tile + (j + i) * kPitchV + key_of(n, 0));
                #pragma unroll
                for (int row = 0; row < 2 * kRowTiles; ++row) {
                    float (&sums)[4] = acc[row / 2][n];
                    sums[row % 2 * 2] = fma_acc(weights[row].lane[i], to_float(v.lane[0]), sums[row % 2 * 2]);
                    sums[row % 2 * 2 + 1] = fma_acc(weights[row].lane[i], to_float(v.lane[1]), sums[row % 2 * 2 + 1]);
                }
            }
        }
    }
}

constexpr int kPitchO = 12;  // elements, of a row of o in shared memory

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

// The sums of the warps that share rows, added in order by the first of them. Scratch: of every other warp, kJoined floats
// a thread.
__device__ __forceinline__ void join_warps(Sums& acc, Softmax& softmax, float* scratch, int warp_q, int warp_kv) {
    constexpr int kJoined = 4 * kRowTiles + 4 * kRowTiles * kTilesV;
    float* const of_thread = scratch + warp_q * (kWarpsKv - 1) * kJoined * 32 + threadIdx.x % 32;
    if (warp_kv > 0) {
        float* const own = of_thread + (warp_kv - 1) * kJoined * 32;
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            own[row * 32] = softmax.shift[row];
            own[(2 * kRowTiles + row) * 32] = softmax.total[row];
        }
        #pragma unroll
        for (int e = 0; e < 4 * kRowTiles * kTilesV; ++e)
            own[(4 * kRowTiles + e) * 32] = acc[e / 4 / kTilesV][e / 4 % kTilesV][e % 4];
    }
    __syncthreads();
    if (warp_kv > 0) return;
    for (int other = 1; other < kWarpsKv; ++other) {
        const float* const theirs = of_thread + (other - 1) * kJoined * 32;
        float shrunk[2 * kRowTiles];
        #pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row) {
            const float shift = fmaxf(softmax.shift[row], theirs[row * 32]), taken = finite(shift);
            const float factor = shrinkage(softmax.shift[row], taken);
            shrunk[row] = shrinkage(theirs[row * 32], taken);
            softmax.total[row] = softmax.total[row] * factor + theirs[(2 * kRowTiles + row) * 32] * shrunk[row];
            softmax.shift[row] = shift;
            Softmax::scale_row(acc, row, factor);
        }
        #pragma unroll
        for (int e = 0; e < 4 * kRowTiles * kTilesV; ++e) {
            float& sum = acc[e / 4 / kTilesV][e / 4 % kTilesV][e % 4];
            sum += theirs[(4 * kRowTiles + e) * 32] * shrunk[e / 4 / kTilesV * 2 + e % 4 / 2];
        }
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

extern "C" __global__ void __launch_bounds__(128, 6)
attention_fprop_flash_attention_b1h1q4k4d8_fp32_bhsd_b491397b(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ o) {
    const Sizes sizes{1, 4, 4};
    const Options options{};
    const int warp_q = threadIdx.x / 32 / kWarpsKv, warp_kv = threadIdx.x / 32 % kWarpsKv;
    const int row_count = sizes.queries * kPack, tiles = (row_count + kBlockQ - 1) / kBlockQ;

    const int units_before = static_cast<int>(blockIdx.x / (tiles * kHeadsTogether)) * kHeadsTogether;
    const int units_here = min(sizes.batch * kUnits - units_before, kHeadsTogether);
    const int place = static_cast<int>(blockIdx.x) - units_before * tiles;
    const int tile = place / units_here;
    const int unit = units_before + place % units_here;
    const int b = unit / kUnits, h0 = unit % kUnits * kPack;  // h0: the first of the heads
    const int r0 = tile * kBlockQ;

    // The steps over keys that any row of the tile sees.
    int begin = 0, end = (sizes.keys + kBlockKv - 1) / kBlockKv;
    const int steps = max(end - begin, 0);

    CONVGEN_SHARED(shared);
    in_t* const q_tile = reinterpret_cast<in_t*>(shared);
    in_t* const k_tiles = q_tile + kBlockQ * kPitchK;
    in_t* const v_tiles = k_tiles + kBuffers * kBlockKv * kPitchK;
    float* const p_tile = reinterpret_cast<float*>(v_tiles + kBuffers * kBlockKv * kPitchV) + threadIdx.x / 32 * kWarpRows * kPitchP;

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
            add_weighted(acc, scores, v_tiles + (buffer * kBlockKv + warp_kv * kWarpKeys) * kPitchV, p_tile);
    }
    softmax.add_lanes();
    cp_async_wait_group<0>();
    __syncthreads();  // shared memory has another use now

    join_warps(acc, softmax, reinterpret_cast<float*>(shared), warp_q, warp_kv);
    if (warp_kv != 0) return;
    #pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row) {
        float& total = softmax.total[row];
        float factor = 1.0f;
        Softmax::scale_row(acc, row, total == 0.0f ? 0.0f : factor / total);
    }
    out_t* const staged = reinterpret_cast<out_t*>(shared + 3072) + warp_q * kWarpRows * kPitchO;
    store_rows(acc, staged, [&](int row) {
        const int r = r_warp + row, i = r / kPack, h = h0 + r % kPack;
        out_t* const head = o + head_offset<kHeadsQ, kHeadDimV>(b, h, sizes.queries);
        return r < row_count ? head + i * kRowStep<kHeadsQ, kHeadDimV> : nullptr;
    });
}
