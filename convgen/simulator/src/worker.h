// A worker: one OS thread that runs blocks, and all the memory it needs, in one aligned region.
//
//   0          the Worker itself       16 MiB   shadow of shared memory (one cell a byte)
//   32 MiB     shared memory           64 MiB   fiber stacks, 64 KiB each
//
// Whoever runs on a fiber finds its worker by masking the stack pointer: no thread-local storage, so
// the kernels' library can be loaded and unloaded at will, and code on a fiber never leaves its OS thread.
#pragma once

#include <stddef.h>

#include "launch.h"
#include "switch.h"

constexpr uint64_t kRegionBytes = 128ull << 20;
constexpr uint64_t kShadowOffset = 16ull << 20;
constexpr uint64_t kSharedOffset = 32ull << 20;
constexpr uint64_t kLocalsOffset = 60ull << 20;  // addresses from here on are locals, of an overflowing stack too
constexpr uint64_t kStacksOffset = 64ull << 20;
constexpr uint64_t kStackBytes = 64ull << 10;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxSharedBytes = 227 * 1024;
constexpr uint32_t kWarp = 32;
constexpr uint32_t kMaxFaults = 64;

// Last write and last reads of one byte of shared memory. A stamp is interval:32 | warp interval:16 | flags and
// thread:16; stamps of earlier barrier intervals conflict with nothing.
struct ShadowCell {
    uint64_t write, read;
};

struct Access;     // counters.h
struct AsyncCopy;  // async_copy.h

enum State : uint8_t { kUnstarted, kRunnable, kAtBarrier, kAtWarp, kTraceFull, kDone };

struct Thread {
    void* stack_pointer;
    uint32_t fiber;
    uint32_t linear;
    Index3 index;
    uint32_t stamp;  // warp interval:16 | thread:16
    // what it waits for
    uint32_t line;
    uint64_t pc;  // where `line` does not say the place
    int operation;
    int operand, width, predicate;
    uint32_t mask;
    uint64_t value, result;
    // a vector access announced by convgen_sim_access, whose parts the compiler's hooks then report again
    uint64_t announced_begin, announced_end;
    uint32_t announced_left;
    // accesses since the last flush, for the counters
    uint32_t trace_length, trace_capacity;
    Access* trace;
    // copies that have not been waited for, the oldest first
    uint32_t copies_begin, copies_end, copies_capacity, groups_committed;
    AsyncCopy* copies;
};

struct SiteTable;

struct Worker {
    const Launch* launch;
    Thread* current;
    void* scheduler_stack_pointer;
    unsigned char* shared;
    Index3 block;
    uint64_t block_linear;
    uint32_t threads, warps;
    uint32_t interval, block_interval;  // barrier intervals: now, and the block's first
    int barrier_result;
    bool abandoned;
    uint64_t ticked_block;  // watchdog.h: the block of the last tick, and how many ticks it has had
    uint32_t ticks;
    bool expired, allocating;
    uint32_t fibers_made, free_fibers;
    uint32_t fault_count;
    Totals totals;
    SiteTable* sites;
    State state[kMaxThreads];
    uint16_t awake[kMaxThreads / kWarp];  // lanes of the warp that are not waiting or done
    uint16_t free_fiber[kMaxThreads];
    Thread thread[kMaxThreads];
    Fault fault[kMaxFaults];

    ShadowCell* shadow() { return reinterpret_cast<ShadowCell*>(reinterpret_cast<char*>(this) + kShadowOffset); }
    char* stack(uint32_t fiber) { return reinterpret_cast<char*>(this) + kStacksOffset + fiber * kStackBytes; }
};
static_assert(sizeof(Worker) < kShadowOffset, "a worker fits below its shadow");
static_assert(kShadowOffset + kMaxSharedBytes * sizeof(ShadowCell) < kSharedOffset, "the shadow fits");

// Only on a fiber.
static inline Worker* this_worker() {
    return reinterpret_cast<Worker*>(stack_pointer() & ~(kRegionBytes - 1));
}
