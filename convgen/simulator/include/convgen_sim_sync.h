// Barriers, warp shuffles and votes.
#pragma once

#define __syncthreads() ((void)convgen_sim_barrier(0, 0, __LINE__))
#define __syncthreads_count(predicate) convgen_sim_barrier(1, (predicate) != 0, __LINE__)
#define __syncthreads_and(predicate) convgen_sim_barrier(2, (predicate) != 0, __LINE__)
#define __syncthreads_or(predicate) convgen_sim_barrier(3, (predicate) != 0, __LINE__)

enum WarpOperation { kWarpSync, kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kBallot, kMatchAny, kElect };

template <typename T>
static inline T convgen_sim_shuffle(int kind, unsigned mask, T value, int operand, int width, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = convgen_sim_warp(kind, mask, bits, operand, width, line);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

static inline unsigned convgen_sim_ballot(unsigned mask, bool predicate, int line) {
    return static_cast<unsigned>(convgen_sim_warp(kBallot, mask, predicate, 0, 32, line));
}

// A shuffle's optional last argument, its width: the whole warp if not given.
static inline int convgen_sim_lanes(int width = 32) { return width; }
#define __shfl_sync(mask, value, lane, ...) \
    convgen_sim_shuffle(kShuffle, mask, value, lane, convgen_sim_lanes(__VA_ARGS__), __LINE__)
#define __shfl_up_sync(mask, value, delta, ...) \
    convgen_sim_shuffle(kShuffleUp, mask, value, delta, convgen_sim_lanes(__VA_ARGS__), __LINE__)
#define __shfl_down_sync(mask, value, delta, ...) \
    convgen_sim_shuffle(kShuffleDown, mask, value, delta, convgen_sim_lanes(__VA_ARGS__), __LINE__)
#define __shfl_xor_sync(mask, value, lanes, ...) \
    convgen_sim_shuffle(kShuffleXor, mask, value, lanes, convgen_sim_lanes(__VA_ARGS__), __LINE__)
#define __ballot_sync(mask, predicate) convgen_sim_ballot(mask, predicate, __LINE__)
#define __any_sync(mask, predicate) (convgen_sim_ballot(mask, predicate, __LINE__) != 0)
#define __all_sync(mask, predicate) (convgen_sim_ballot(mask, !(predicate), __LINE__) == 0)
#define __match_any_sync(mask, value) \
    static_cast<unsigned>(convgen_sim_shuffle<uint64_t>(kMatchAny, mask, value, 0, 32, __LINE__))
#define __activemask() convgen_sim_active_mask()
#define CONVGEN_SIM_SYNCWARP(mask, ...) ((void)convgen_sim_warp(kWarpSync, mask, 0, 0, 32, __LINE__))
#define __syncwarp(...) CONVGEN_SIM_SYNCWARP(__VA_ARGS__ __VA_OPT__(, ) 0xffffffffu)

#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __threadfence_block() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __threadfence_system() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __trap() convgen_sim_trap(__LINE__)
