// Warp-level waiting: shuffles, votes, __syncwarp and what a whole warp executes end when every lane of the mask has come
// or exited.
#pragma once

#include "clocks.h"
#include "counters.h"
#include "matrix.h"
#include "worker.h"

enum WarpOperation {
    kWarpSync,
    kShuffle,
    kShuffleUp,
    kShuffleDown,
    kShuffleXor,
    kBallot,
    kMatchAny,
    kElect,
    kMma,
    kLdmatrix,
    kStmatrix
};

static inline uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

static inline void wake(Worker* w, Thread* t) {
    w->state[t->linear] = kRunnable;
    ++w->awake[t->linear / kWarp];
}

static int source_lane(const Thread* t, int lane) {
    const int segment = lane & ~(t->width - 1);
    switch (t->operation) {
        case kShuffle: return segment + (t->operand & (t->width - 1));
        case kShuffleUp: return lane - t->operand < segment ? lane : lane - t->operand;
        case kShuffleDown: return lane + t->operand >= segment + t->width ? lane : lane + t->operand;
        default: return (lane ^ t->operand) >= segment + t->width ? lane : lane ^ t->operand;
    }
}

static uint64_t warp_result(const Thread* lanes, uint32_t mask, int lane) {
    const Thread* t = &lanes[lane];
    uint64_t result = 0;
    switch (t->operation) {
        case kWarpSync: return 0;
        case kBallot:
            for (uint32_t i = 0; i < kWarp; ++i)
                if (mask >> i & 1) result |= (lanes[i].value & 1) << i;
            return result;
        case kMatchAny:
            for (uint32_t i = 0; i < kWarp; ++i)
                if (mask >> i & 1 && lanes[i].value == t->value) result |= 1ull << i;
            return result;
        case kElect: return static_cast<uint32_t>(__builtin_ctz(mask)) == static_cast<uint32_t>(lane);
        default: {
            const int from = source_lane(t, lane);
            return mask >> from & 1 ? lanes[from].value : t->value;
        }
    }
}

// Threads that must come to one instruction, of which `other` has come to another address: a compiler may have copied it
// onto several paths. Findings tell by the lines of the source whether it is the same.
static void record_apart(Worker* w, Thread* t, const Thread& other) {
    if (other.pc == t->pc) return;
    Thread* const running = w->current;
    w->current = t;
    record(w, Fault{.pc = t->pc, .address = other.pc, .kind = kDivergentWarp, .object = kNoObject, .rule = kApart});
    w->current = running;
}

// mma, ldmatrix or stmatrix by these lanes. All must be there, at the same instruction; that orders none of their accesses.
static void execute_together(Worker* w, Thread* t, uint32_t present) {
    const uint32_t base = t->linear & ~(kWarp - 1);
    const Thread* lanes = &w->thread[base];
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < kWarp; ++lane)
        if (present >> lane & 1 && lanes[lane].operand == t->operand) {
            same |= 1u << lane;
            if (w->launch->check) record_apart(w, t, lanes[lane]);
        }
    if (same != 0xffffffffu && w->launch->check) {
        Thread* const running = w->current;
        w->current = t;
        record(w, Fault{.pc = t->pc, .kind = kDivergentWarp, .object = same});
        w->current = running;
    }
    if (t->operation == kMma)
        warp_mma(w, lanes, present, static_cast<MmaType>(t->operand));
    else if (t->operation == kLdmatrix)
        warp_ldmatrix(w, lanes, present);
    else
        warp_stmatrix(w, lanes, present);
    for (uint32_t lane = 0; lane < kWarp; ++lane)
        if (present >> lane & 1) wake(w, &w->thread[base + lane]);
}

// If all lanes of t's mask are there for the same operation, give each its result and let them run.
static void try_collective(Worker* w, Thread* t) {
    const uint32_t base = t->linear & ~(kWarp - 1);
    Thread* lanes = &w->thread[base];
    uint32_t present = 0;
    uint32_t newest = 0;
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(t->mask >> lane & 1)) continue;
        if (base + lane >= w->threads || w->state[base + lane] == kDone) continue;
        const Thread* other = &lanes[lane];
        if (w->state[base + lane] != kAtWarp || other->mask != t->mask || other->operation != t->operation) return;
        present |= 1u << lane;
        if (other->stamp > newest) newest = other->stamp;
    }
    if (t->operation >= kMma) return execute_together(w, t, present);
    for (uint32_t lane = 0; lane < kWarp; ++lane)
        if (present >> lane & 1) lanes[lane].result = warp_result(lanes, present, lane);
    if (t->operation == kElect) {  // no synchronisation of memory
        for (uint32_t lane = 0; lane < kWarp; ++lane)
            if (present >> lane & 1) wake(w, &lanes[lane]);
        return;
    }
    join_threads(w, base, kWarp, [&](uint32_t i) { return present >> (i - base) & 1; });
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if (!(present >> lane & 1)) continue;
        if (w->ranks == 1) lanes[lane].stamp = (((newest >> 16) + 1) << 16) | lanes[lane].linear;
        wake(w, &lanes[lane]);
    }
}

// Instructions of a warpgroup: mma_async and its wait, and setmaxnreg. The last of the 128 threads to come does the work.
enum WarpgroupOperation { kWgmma, kWgmmaWait, kSetRegisters };

// Whether the threads may go on.
static bool execute_in_warpgroup(Worker* w, Thread* first);

static void report_divergence(Worker* w, Thread* t, uint64_t present) {
    w->current = t;
    record(w, Fault{.pc = t->pc, .address = present, .wanted = kWarpgroup, .kind = kDivergentWarp, .object = kNoObject,
                    .rule = kWarpgroupDiverges});
    abandon(w);
}

static void try_warpgroup(Worker* w, Thread* t) {
    const uint32_t base = t->linear / kWarpgroup * kWarpgroup;
    uint64_t same = 0;
    bool complete = base + kWarpgroup <= w->threads, all_here = true;
    for (uint32_t i = base; i < base + kWarpgroup && i < w->threads; ++i) {
        const Thread& other = w->thread[i];
        const bool here = w->state[i] == kAtWarpgroup;
        if (here && other.operation == t->operation && other.operand == t->operand) ++same;
        all_here = all_here && here;
        complete = complete && w->state[i] != kDone;
    }
    if (!complete || (all_here && same < kWarpgroup)) report_divergence(w, t, same);
    if (same < kWarpgroup) return;
    for (uint32_t i = base; i < base + kWarpgroup; ++i) record_apart(w, t, w->thread[i]);
    Thread* const running = w->current;
    const bool go_on = execute_in_warpgroup(w, &w->thread[base]);
    w->current = running;
    for (uint32_t i = base; i < base + kWarpgroup; ++i) {
        if (go_on)
            wake(w, &w->thread[i]);
        else
            w->state[i] = kAtRegisters;
    }
}

// Called once t waits or is done.
static void fall_asleep(Worker* w, Thread* t) {
    const uint32_t warp = t->linear / kWarp;
    const uint32_t base = warp * kWarp;
    if (--w->awake[warp] == 0 && w->launch->count) {
        flush_traces(w, base);
        for (uint32_t i = base; i < base + kWarp && i < w->threads; ++i)
            if (w->state[i] == kTraceFull) wake(w, &w->thread[i]);
    }
    if (w->state[t->linear] == kAtWarp) {
        try_collective(w, t);
    } else if (w->state[t->linear] == kAtWarpgroup) {
        try_warpgroup(w, t);
    } else if (w->state[t->linear] == kDone) {  // its exit may complete what other lanes wait for
        for (uint32_t i = base; i < base + kWarp && i < w->threads; ++i)
            if (w->state[i] == kAtWarp) try_collective(w, &w->thread[i]);
    }
}
