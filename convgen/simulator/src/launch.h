// What Python and the simulator exchange. Mirrored field by field in convgen/simulator/abi.py.
#pragma once

#include <stdint.h>

struct Index3 {
    uint32_t x, y, z;
};

enum Space : uint32_t { kGlobal, kShared, kConstant, kTexture, kSpaces };

// Causes before what they may lead to: faults are told in this order.
enum FaultKind : uint32_t {
    kStackOverflow,
    kDivergentBarrier,
    kDivergentWarp,
    kDeadlock,
    kEndless,
    kOutOfBounds,
    kMisaligned,
    kReadOnly,
    kTrap,
    kCrash,
    kMbarrierMisuse,
    kMisusedBarrier,
    kMisusedCluster,
    kMisusedRegisters,
    kIllegalCopy,
    kIllegalWgmma,
    kInFlight,
    kProxy,
    kRace,
    kUninitialised,
};

// What else is to be said of a fault: mirrored in convgen/simulator/rules.py.
enum Rule : uint32_t {
    kNoRule,
    kPhaseNeverEnds,
    kNoMbarrier,
    kInitUnknown,
    kInitInUse,
    kArrivalCount,
    kTooManyMbarriers,
    kTransactionCount,
    kTooManyArrivals,
    kBytesLeft,
    kLateBytes,
    kInitUnfenced,
    kNoTensorMap,
    kWrongRank,
    kWrongMode,
    kSharedAlignment,
    kGlobalAlignment,
    kCopySize,
    kLoadUnderWay,
    kStoreUnderWay,
    kWarpgroupDiverges,
    kApart,
    kWarpgroupNeverMeets,
    kOperandsDiffer,
    kNoWgmmaFence,
    kBaseOffset,
    kWgmmaUnderWay,
    kTooManyWgmmas,
    kAccumulatorInFlight,
    kOperandInFlight,
    kBarrierNumber,
    kBarrierCount,
    kBarrierCounts,
    kBarrierNeverFull,
    kNoIncrease,
    kNoDecrease,
    kRegistersNeverFree,
    kNoRank,
    kStartUnknown,
    kExitUnknown,
    kArrivesTwice,
    kWaitsUnarrived,
    kClusterNeverMeets,
    kMulticastMask,
    kRowStart,
    kNegativeStore,
};

// One fault, the first of its kind at its place, and how often it came again.
struct Fault {
    uint64_t pc;       // return address within the library, from its start; 0 if `line` says the place
    uint64_t address;  // the access, as the kernel sees it; with a rule, the value that breaks it; with kApart, the other's pc
    uint64_t wanted;   // with a rule, the value it asks for
    int64_t offset;    // bytes from the start of the buffer, array or shared memory
    uint64_t count;
    FaultKind kind;
    Space space;
    uint32_t object;  // index of the buffer or constant array, kNoObject if the address lies in none; of shared memory the
                      // rank of its block
    uint32_t bytes;
    uint32_t is_write;
    uint32_t is_pending;  // race: with a copy (cp.async) that has not been waited for
    uint32_t line;
    uint32_t other_line;    // divergent barrier: where the other thread waits, 0 if it exited
    uint32_t other_thread;  // race, divergent barrier: linear index in the block, or an agent (worker.h); or kNoObject
    uint32_t other_rank;    // race: of the block that it belongs to
    uint32_t rank;          // of the block in its cluster
    Rule rule;
    Index3 block, thread;
};
constexpr uint32_t kNoObject = 0xffffffffu;

// A guarded range of global memory. `writer` and `touched` have one entry per granule of 2^granule_bits bytes, or
// are null: a buffer with no `writer` is read-only.
struct Buffer {
    uint64_t base, bytes;
    uint64_t* writer;  // 0 unwritten, 1 by the host, 2 by an earlier launch, or who wrote it in this one (shadow.h)
    uint8_t* touched;
    uint32_t granule_bits;
    uint32_t held, held_behind;  // how kernels before that may still run use it (Use); behind the thread's wait
    uint32_t used;               // how this one does
};
enum Use : uint32_t { kUsedToRead = 1, kUsedToWrite = 2 };

struct ConstantArray {
    uint64_t base, bytes;
};

// A 2-D texture: point sampling, unnormalised coordinates, zero outside.
struct Texture {
    uint64_t base;
    uint64_t pitch;
    uint32_t width, height;
    uint32_t is_half;
    uint32_t buffer;
};

// What one access site (instruction) asked for. A transaction is a 32-byte sector (global), a wavefront of
// 32 banks (shared) or a distinct address (constant, texture) of one warp instruction.
struct Site {
    uint64_t pc;
    Space space;
    uint32_t is_write;
    uint64_t instructions, accesses, bytes, transactions, ideal_transactions;
};

// How an mbarrier stood in a deadlock; `expected` is 0 in entries that are not used.
struct MbarrierState {
    uint64_t offset;
    uint32_t rank;  // of its block
    uint32_t phase, expected, pending;
    int32_t bytes;
};

struct Totals {
    uint64_t flops, barriers, blocks;
    uint64_t read_bytes[kSpaces], written_bytes[kSpaces], accesses[kSpaces];
};

struct Launch {
    void (*entry)(void** arguments);
    void** arguments;
    Index3 grid, block, cluster;  // blocks, threads of a block, blocks of a cluster
    uint32_t shared_bytes;
    uint32_t check, count;
    uint32_t workers;        // OS threads, at most kMaxWorkers
    uint32_t late_copies;    // cp.async copies when it is waited for; else when it is issued
    uint64_t timeout_ms;     // CPU time that one block may take; 0: as much as it likes
    void** regions;          // memory of workers (worker.h), for each OS thread as many as a cluster has blocks
    const uint64_t* clusters;  // linear indices of those to run, or null for all; a block of no cluster is one by itself
    uint64_t cluster_count;
    uint64_t arena_base;  // buffer i lies in [arena_base + i * kArenaSlot, … + kArenaSlot)
    Buffer* buffers;
    const ConstantArray* constants;                // those of the kernel's unit
    uint64_t constants_begin, constants_end;       // where those of all units lie
    const Texture* textures;
    uint32_t buffer_count, constant_count, texture_count;
    // results
    Fault* faults;
    uint32_t fault_capacity, fault_count;
    Site* sites;
    uint32_t site_capacity, site_count;
    MbarrierState* mbarriers;   // of the first cluster that is stuck, with room for 64 of each block
    uint32_t* mbarriers_taken;  // whether it is
    uint32_t waited;            // whether any thread waited for the kernels before (grid_dependency_wait)
    Totals totals;
};
constexpr uint32_t kMaxWorkers = 64;
constexpr uint64_t kArenaSlotBits = 34;
constexpr uint64_t kGuardBytes = 65536;  // mapped on both sides of a buffer
