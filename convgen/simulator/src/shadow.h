// What is known of each byte of memory: written or not, by whom, and when.
#pragma once

#include "clocks.h"
#include "faults.h"
#include "worker.h"

struct Touch {
    uint64_t address, pc;
    uint32_t bytes;
    bool write, atomic;
    bool pending = false;  // a write that happens at any time until it has been waited for
    bool bulk = false;     // of a unit that needs its elements to be aligned, no more
};

static void record_access(Worker* w, FaultKind kind, const Touch& touch, Space space, uint32_t object, int64_t offset,
                          uint32_t other_thread = kNoObject, bool is_pending = false) {
    record(w, Fault{.pc = touch.pc, .address = touch.address, .offset = offset, .kind = kind, .space = space,
                    .object = object, .bytes = touch.bytes, .is_write = touch.write, .is_pending = is_pending,
                    .other_thread = other_thread});
}

static bool misaligned(const Touch& touch) {
    return !touch.bulk && touch.bytes <= 16 && (touch.bytes & (touch.bytes - 1)) == 0 && touch.address % touch.bytes != 0;
}

// --- shared memory: a stamp is time:32 | warp interval:16 | flags:5 | actor:11 ---------------------------------

constexpr uint64_t kActorBits = 0x7ff;
constexpr uint64_t kSeveralLanes = 1 << 11;  // reads: by several lanes of that warp, in that warp interval
constexpr uint64_t kSeveralWarps = 1 << 12;  // reads: by several warps; with clocks, by those in Worker::readers
constexpr uint64_t kAtomic = 1 << 13;
constexpr uint64_t kPending = 1 << 14;  // writes: of a cp.async that has not been waited for

static inline uint64_t stamp_of(const Thread* t) { return static_cast<uint64_t>(t->time) << 32 | t->stamp; }

// True if the access stamped `other` and one stamped `mine` by thread t, of which one writes, are in no order.
static inline bool unordered(Worker* w, const Thread* t, uint64_t other, uint64_t mine, uint64_t offset) {
    if (w->has_clocks) {
        if (other & kSeveralWarps) return has_unknown_reader(w, w->clock_of[t->linear].known, t->linear, offset);
        const uint32_t actor = other & kActorBits;
        if (actor == t->linear || is_known(w, w->clock_of[t->linear].known, actor, other >> 32)) return false;
        if (actor >= kMaxThreads) return true;
    } else if (other >> 32 < w->floor) {
        return false;
    }
    if (other & kSeveralWarps) return true;
    if ((other ^ mine) & kActorBits & ~31ull) return true;  // two warps
    if ((other ^ mine) >> 16 & 0xffff) return false;        // one warp, ordered by a warp-level synchronisation
    return other & kSeveralLanes || (other ^ mine) & kActorBits;
}

static inline uint64_t merged_read(Worker* w, uint64_t known, uint64_t mine) {
    if (known >> 32 < w->floor) return mine;
    if (known & kSeveralWarps) return known;
    if ((known ^ mine) & kActorBits & ~31ull) return mine | kSeveralWarps;
    if (known >> 16 == mine >> 16 && (known ^ mine) & (kActorBits | kSeveralLanes)) return mine | kSeveralLanes;
    return mine;
}

// Shared memory's offset of the access; negative if it lies outside, which is recorded.
static int64_t shared_offset(Worker* w, const Touch& touch) {
    const int64_t offset = static_cast<int64_t>(touch.address - reinterpret_cast<uint64_t>(w->shared));
    if (offset >= 0 && offset + touch.bytes <= w->launch->shared_bytes) return offset;
    record_access(w, kOutOfBounds, touch, kShared, kNoObject, offset);
    if (offset < -static_cast<int64_t>(kGuardBytes) || offset > static_cast<int64_t>(kReadersOffset - kSharedOffset - kGuardBytes))
        abandon(w);
    return -1;
}

static void check_shared(Worker* w, const Thread* t, const Touch& touch) {
    const int64_t offset = shared_offset(w, touch);
    if (offset < 0) return;
    if (misaligned(touch)) record_access(w, kMisaligned, touch, kShared, kNoObject, offset);
    const uint64_t mine = stamp_of(t);
    ShadowCell* cell = w->shadow() + offset;
    bool unwritten = false, race = false, pending = false;
    uint64_t other = 0;
    for (uint32_t i = 0; i < touch.bytes; ++i, ++cell) {
        const uint64_t at = static_cast<uint64_t>(offset) + i;
        if (cell->write & kPending && cell->write >> 32 >= w->block_floor) {
            race = pending = true;
            other = cell->write;
        } else if (!(touch.atomic && cell->write & kAtomic) && unordered(w, t, cell->write, mine, at)) {
            race = true;
            other = cell->write;
        }
        if (touch.write) {
            if (!touch.atomic && unordered(w, t, cell->read, mine, at)) {
                race = true;
                other = cell->read;
            }
        }
        if (!touch.write || touch.atomic) {
            unwritten |= cell->write >> 32 < w->block_floor;
            if (!touch.atomic)
                cell->read = w->has_clocks ? known_read(w, w->clock_of[t->linear].known, cell->read, mine, at)
                                           : merged_read(w, cell->read, mine);
        }
        if (touch.write) {
            cell->write = mine | (touch.atomic ? kAtomic : 0) | (touch.pending ? kPending : 0);
            if (w->has_clocks) cell->read = 0;
        }
    }
    if (unwritten) record_access(w, kUninitialised, touch, kShared, kNoObject, offset);
    if (race)
        record_access(w, kRace, touch, kShared, kNoObject, offset,
                      other & (kSeveralLanes | kSeveralWarps) ? kNoObject : other & kActorBits, pending);
}

// The thread has waited for a copy of its own: to others, what it wrote is written now.
static void end_pending(Worker* w, const Thread* t, const void* address, uint32_t bytes) {
    const uint64_t offset = reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(w->shared);
    if (offset >= w->launch->shared_bytes || bytes > w->launch->shared_bytes - offset) return;
    for (uint32_t i = 0; i < bytes; ++i) w->shadow()[offset + i].write = stamp_of(t);
}

// The same for an access of the async proxy, which `agent` makes at `time` by what `clock` knows. What `self` did
// comes before. A write of the generic proxy must have come through a fence between the proxies.
static void check_async(Worker* w, uint32_t self, const Clock& clock, uint32_t agent, uint32_t time, const Touch& touch) {
    const int64_t offset = shared_offset(w, touch);
    if (offset < 0) return;
    const uint64_t mine = static_cast<uint64_t>(time) << 32 | agent;
    ShadowCell* cell = w->shadow() + offset;
    bool unwritten = false, race = false, unfenced = false, pending = false;
    uint64_t other = 0;
    for (uint32_t i = 0; i < touch.bytes; ++i, ++cell) {
        const uint64_t at = static_cast<uint64_t>(offset) + i;
        const uint32_t writer = cell->write & kActorBits;
        const uint32_t written = static_cast<uint32_t>(cell->write >> 32);
        if (written >= w->block_floor) {
            if (cell->write & kPending || (writer != self && !is_known(w, clock.known, writer, written))) {
                race = true;
                pending = cell->write & kPending;
                other = cell->write;
            } else if (writer < kMaxThreads && clock.fenced[writer] < written) {
                unfenced = true;
            }
        }
        if (touch.write) {
            const uint32_t reader = cell->read & kActorBits;
            if (cell->read & kSeveralWarps ? has_unknown_reader(w, clock.known, self, at)
                                           : reader != self && !is_known(w, clock.known, reader, cell->read >> 32)) {
                race = true;
                other = cell->read;
            }
            cell->write = mine;
            cell->read = 0;
        } else {
            unwritten |= written < w->block_floor;
            cell->read = known_read(w, clock.known, cell->read, mine, at);
        }
    }
    if (unwritten) record_access(w, kUninitialised, touch, kShared, kNoObject, offset);
    if (unfenced) record_access(w, kProxy, touch, kShared, kNoObject, offset);
    if (race)
        record_access(w, kRace, touch, kShared, kNoObject, offset,
                      other & kSeveralWarps ? kNoObject : other & kActorBits, pending);
}

// --- global memory: a writer is atomic:1 | thread in the grid + 1:43 | barrier interval:20 --------------------

constexpr uint64_t kAtomicWriter = 1ull << 63;
constexpr uint64_t kIntervalBits = (1ull << 20) - 1;
constexpr uint64_t kUnwritten = 0;
constexpr uint64_t kFirstWriter = 1ull << 20;

static void check_global(Worker* w, const Thread* t, const Touch& touch, uint32_t object) {
    const Buffer& buffer = w->launch->buffers[object];
    const int64_t offset = static_cast<int64_t>(touch.address - buffer.base);
    if (offset < 0 || static_cast<uint64_t>(offset) + touch.bytes > buffer.bytes) {
        record_access(w, kOutOfBounds, touch, kGlobal, object, offset);
        const int64_t guard = kGuardBytes - 64;
        if (offset < -guard || offset > static_cast<int64_t>(buffer.bytes) + guard - touch.bytes) abandon(w);
        return;
    }
    if (misaligned(touch)) record_access(w, kMisaligned, touch, kGlobal, object, offset);
    const uint64_t first = static_cast<uint64_t>(offset) >> buffer.granule_bits;
    const uint64_t last = static_cast<uint64_t>(offset + touch.bytes - 1) >> buffer.granule_bits;
    if (buffer.touched)
        for (uint64_t i = first; i <= last; ++i) buffer.touched[i] = 1;
    if (!buffer.writer) {
        if (touch.write) record_access(w, kReadOnly, touch, kGlobal, object, offset);
        return;
    }
    const uint64_t block_first = w->block_linear * w->threads + 1;
    const uint64_t mine = (block_first + t->linear) << 20 | (w->interval & kIntervalBits);
    bool unwritten = false, race = false;
    uint32_t other_thread = kNoObject;
    for (uint64_t i = first; i <= last; ++i) {
        const uint64_t other = buffer.writer[i];
        if (!touch.write || touch.atomic) unwritten |= other == kUnwritten;
        if (other >= kFirstWriter && !(other & kAtomicWriter) && !touch.atomic && (other ^ mine) >> 20) {
            const uint64_t thread = (other >> 20) - block_first;  // huge if of another block
            const bool same_interval = ((other ^ mine) & kIntervalBits) == 0;
            if (thread >= w->threads) {
                race |= touch.write;
            } else if (same_interval && (touch.write || thread / kWarp != t->linear / kWarp)) {
                race = true;
                other_thread = static_cast<uint32_t>(thread);
            }
        }
        if (touch.write) buffer.writer[i] = touch.atomic ? mine | kAtomicWriter : mine;
    }
    if (unwritten) record_access(w, kUninitialised, touch, kGlobal, object, offset);
    if (race) record_access(w, kRace, touch, kGlobal, object, offset, other_thread);
}

// --- constant arrays and other data of the library ------------------------------------------------------------

// Whether the access is to constant memory; tables the compiler made are none of ours.
static bool check_constant(Worker* w, const Touch& touch) {
    const Launch* launch = w->launch;
    if (touch.address - launch->constants_begin >= launch->constants_end - launch->constants_begin) return false;
    uint32_t nearest = kNoObject;  // the last array that begins at or below the address
    for (uint32_t i = 0; i < launch->constant_count; ++i) {
        const ConstantArray& array = launch->constants[i];
        if (touch.address >= array.base && (nearest == kNoObject || array.base > launch->constants[nearest].base)) nearest = i;
    }
    const int64_t offset = nearest == kNoObject ? 0 : static_cast<int64_t>(touch.address - launch->constants[nearest].base);
    if (nearest == kNoObject || static_cast<uint64_t>(offset) + touch.bytes > launch->constants[nearest].bytes)
        record_access(w, kOutOfBounds, touch, kConstant, nearest, offset);
    else if (touch.write)
        record_access(w, kReadOnly, touch, kConstant, nearest, offset);
    else if (misaligned(touch))
        record_access(w, kMisaligned, touch, kConstant, nearest, offset);
    return true;
}
