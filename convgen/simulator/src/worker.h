// A worker: what runs one block at a time, and all the memory it needs, in one aligned region that is given to it.
//
//   0          the Worker itself       16 MiB   shadow of shared memory (one cell a byte)
//   21 MiB     wgmma under way         32 MiB   shared memory
//   59 MiB     bulk copies under way   64 MiB   fiber stacks, 64 KiB each
//
// Whoever runs on a fiber finds its worker by masking the stack pointer: no thread-local storage, so
// the kernels' library can be loaded and unloaded at will, and code on a fiber never leaves its OS thread.
//
// An OS thread has one worker, or one for each block of a cluster: they take turns.
#pragma once

#include <stddef.h>

#include "launch.h"
#include "switch.h"

constexpr uint64_t kRegionBytes = 128ull << 20;
constexpr uint64_t kShadowOffset = 16ull << 20;
constexpr uint64_t kWgmmaOffset = 21ull << 20;
constexpr uint64_t kSharedOffset = 32ull << 20;
constexpr uint64_t kSharedEnd = 40ull << 20;
constexpr uint64_t kCopiesOffset = 59ull << 20;
constexpr uint64_t kLocalsOffset = 60ull << 20;  // addresses from here on are locals, of an overflowing stack too
constexpr uint64_t kStacksOffset = 64ull << 20;
constexpr uint64_t kStackBytes = 64ull << 10;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxCluster = 8;
constexpr uint32_t kMaxSharedBytes = 227 * 1024;
constexpr uint32_t kWarp = 32;
constexpr uint32_t kMaxFaults = 64;

// Last write and last reads of one byte of shared memory. A stamp is time:32 | warp interval:16 | flags and actor:16;
// what threads did before the last barrier of the block conflicts with nothing. In clusters the actor's rank stands in
// place of the warp interval.
struct ShadowCell {
    uint64_t write, read;
};

// Who acts on shared memory: threads, and what goes on without them. An agent's work is known to be done by whoever
// waited for it, or has it from someone who did.
constexpr uint32_t kWarpgroup = 128;
constexpr uint32_t kMaxCopies = 1024, kMaxWgmmas = 256;
constexpr uint32_t kMbarriers = 64, kNamedBarriers = 16, kWarpgroups = kMaxThreads / kWarpgroup;
constexpr uint32_t kMbarrierAgents = kMaxThreads;                    // writes of copies that complete on an mbarrier
constexpr uint32_t kWarpgroupAgents = kMbarrierAgents + kMbarriers;  // reads of a warpgroup's wgmma: every 32nd,
                                                                     // since readers of 32 actors share one time
constexpr uint32_t kOpaqueActor = kWarpgroupAgents + 31;             // holds an mbarrier: nobody may touch it otherwise
constexpr uint32_t kStoreAgents = kWarpgroupAgents + kWarpgroups * kWarp;  // reads of the bulk stores of a warp
constexpr uint32_t kActors = kStoreAgents + kMaxThreads / kWarp;
constexpr uint32_t kKernelBefore = 0xfffffffe;  // in faults

// Of the actors of one block: times up to which their accesses are known to be done, and those whose generic writes the
// async proxy sees. Whoever knows something has one for each block of the cluster, by rank.
struct Clock {
    uint32_t known[kActors], fenced[kActors];
};

// Who has clocks, beside the threads: barriers, the phase that is and those that were of mbarriers and of the cluster's
// barrier, and what is put together in between.
constexpr uint32_t kBarrierClocks = kMaxThreads;
constexpr uint32_t kMbarrierClocks = kBarrierClocks + kNamedBarriers;
constexpr uint32_t kClusterClocks = kMbarrierClocks + 2 * kMbarriers;
constexpr uint32_t kJoinedClock = kClusterClocks + 2;

// The mapping behind Worker::clocks and Worker::readers, for each block of a cluster.
constexpr uint64_t kClockBytes = (kJoinedClock + 1) * sizeof(Clock);
constexpr uint64_t kReaderBytes = kMaxSharedBytes / 4 * (kActors / kWarp) * sizeof(uint64_t);

struct Access;     // counters.h
struct TensorCopy;  // tensor_copy.h
struct Wgmma;       // wgmma.h
struct AsyncCopy;  // async_copy.h

enum State : uint8_t {
    kUnstarted,
    kRunnable,
    kAtBarrier,
    kAtWarp,
    kAtMbarrier,
    kAtWarpgroup,
    kAtNamedBarrier,
    kAtRegisters,
    kAtClusterBarrier,
    kTraceFull,
    kDone
};

// From the first to the last; none if `last` is 0.
struct Span {
    uint32_t first, last;
};

struct Thread {
    void* stack_pointer;
    uint32_t fiber;
    uint32_t linear;
    Index3 index;
    uint32_t time;   // of its accesses: moves on when others may learn of them
    uint32_t stamp;  // warp interval:16 (in clusters the rank) | thread:16
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
    uint32_t bulk_groups;
    bool wgmma_fenced;
    bool has_waited;  // for the kernels before
    // in the cluster: whether it has come to its barrier and not waited, in which phase; ranks that it knows have started
    bool has_arrived;
    uint32_t arrived_phase, started;
    Span remote_writes;  // of times: of those to other blocks' memory that none but its own block may know of
};

struct SiteTable;

// An mbarrier of the block. `offset` is from the start of shared memory.
struct Mbarrier {
    uint64_t offset, expect_pc;
    uint32_t expected, pending, phase;
    int32_t bytes;  // transactions that the phase still waits for
    uint32_t initialiser, init_time;
    bool live, fenced;
};

struct NamedBarrier {
    uint32_t arrived, count;
};

// The last access of a thread of another block.
struct Visit {
    uint64_t pc;
    uint32_t time;
};

struct Worker;

// Blocks that run at the same time, by rank, and what they share.
struct Cluster {
    Worker* block[kMaxCluster];
    uint32_t size;
    uint32_t clock;  // the newest time
    int os_thread;
    bool abandoned;
    uint32_t arrived, absent, phase;  // of its barrier: threads that have come, and that ended before they came
};

struct Worker {
    const Launch* launch;
    Cluster* cluster;
    Thread* current;
    void* scheduler_stack_pointer;
    unsigned char* shared;
    Index3 block;
    uint64_t block_linear;
    uint32_t rank, ranks;  // of the block, of all in the cluster
    uint32_t threads, warps;
    uint32_t live;               // threads that have not ended
    bool is_over;                // its end has been looked at
    uint32_t interval;           // between barriers
    uint32_t floor, block_floor;  // times: of the last barrier, of the cluster's start
    uint32_t newest;             // time of any launch before
    uint32_t actor_bits;         // of a stamp, that tell who
    bool has_clocks;             // threads of the block are ordered by more than barriers
    int barrier_result;
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
    Clock* clocks;
    uint64_t* readers;
    uint32_t mapped_ranks;  // for how many there is room behind these two
    uint32_t mbarriers;
    Mbarrier mbarrier[kMbarriers];
    NamedBarrier barrier[kNamedBarriers];
    uint32_t registers[kWarpgroups], free_registers;  // of a thread; of the block
    // bulk copies under way: loads into the block's memory as a ring, stores by age
    uint32_t loads_begin, loads_end, stores;
    TensorCopy *load, *store;
    // wgmma under way, by warpgroup and age
    Wgmma* wgmma;
    uint32_t wgmmas[kWarpgroups], wgmma_groups[kWarpgroups];
    bool has_wgmma;
    bool has_waited;  // any thread of any block
    double wgmma_b[32 * 256];  // the operand of the one that runs
    Visit visit[kMaxCluster][kMaxThreads];

    ShadowCell* shadow() { return reinterpret_cast<ShadowCell*>(reinterpret_cast<char*>(this) + kShadowOffset); }
    // By rank: what thread i knows, or is kept at one of the places above.
    Clock* clock_of(uint32_t i) { return clocks + i * ranks; }
    Clock* arriving(const Mbarrier* b) { return clock_of(kMbarrierClocks + 2 * static_cast<uint32_t>(b - mbarrier)); }
    Clock* completed(const Mbarrier* b) { return arriving(b) + ranks; }
    // By a word of shared memory, then rank, then warp (or 32 agents): time of its last read:32 | who read:32.
    uint64_t* readers_of(uint64_t offset) { return readers + offset / 4 * (kActors / kWarp) * ranks; }
    char* stack(uint32_t fiber) { return reinterpret_cast<char*>(this) + kStacksOffset + fiber * kStackBytes; }
};
static_assert(sizeof(Worker) < kShadowOffset, "a worker fits below its shadow");
static_assert(kShadowOffset + kMaxSharedBytes * sizeof(ShadowCell) < kWgmmaOffset, "the shadow fits");
static_assert(kMaxSharedBytes < kSharedEnd - kSharedOffset, "shared memory fits");

// Only on a fiber.
static inline Worker* this_worker() {
    return reinterpret_cast<Worker*>(stack_pointer() & ~(kRegionBytes - 1));
}
