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
                          uint32_t other_thread = kNoObject, uint32_t other_rank = 0, bool is_pending = false) {
    record(w, Fault{.pc = touch.pc, .address = touch.address, .offset = offset, .kind = kind, .space = space,
                    .object = object, .bytes = touch.bytes, .is_write = touch.write, .is_pending = is_pending,
                    .other_thread = other_thread, .other_rank = other_rank});
}

static bool misaligned(const Touch& touch) {
    return !touch.bulk && touch.bytes <= 16 && (touch.bytes & (touch.bytes - 1)) == 0 && touch.address % touch.bytes != 0;
}

// --- shared memory: a stamp is time:32 | warp interval:16 (in clusters rank:16) | flags:5 | actor:11 ------------

constexpr uint64_t kActorBits = 0x7ff;
constexpr uint64_t kSeveralLanes = 1 << 11;  // reads: by several lanes of that warp, in that warp interval
constexpr uint64_t kSeveralWarps = 1 << 12;  // reads: by several warps; with clocks, by those in Worker::readers
constexpr uint64_t kAtomic = 1 << 13;
constexpr uint64_t kPending = 1 << 14;  // writes: of a cp.async that has not been waited for

static inline uint64_t stamp_of(const Thread* t) { return static_cast<uint64_t>(t->time) << 32 | t->stamp; }

// True if the access to the owner's memory stamped `other` and one stamped `mine` by thread t, of which one writes, are in
// no order.
static inline bool unordered(Worker* w, Worker* owner, const Thread* t, uint64_t other, uint64_t mine, uint64_t offset) {
    if (w->has_clocks) {
        const Clock* clock = w->clock_of(t->linear);
        if (other & kSeveralWarps) return has_unknown_reader(w, owner, clock, t->linear, offset);
        const uint32_t actor = other & kActorBits;
        if (same_actor(w, other, mine) || is_known(w, clock, rank_of(w, other), actor, other >> 32)) return false;
        if (actor >= kMaxThreads || w->ranks > 1) return true;
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

// The owner's shared memory's offset of the access; negative if it lies outside, which is recorded.
static int64_t shared_offset(Worker* w, const Worker* owner, const Touch& touch) {
    const int64_t offset = static_cast<int64_t>(touch.address - reinterpret_cast<uint64_t>(owner->shared));
    if (offset >= 0 && offset + touch.bytes <= w->launch->shared_bytes) return offset;
    record_access(w, kOutOfBounds, touch, kShared, owner->rank, offset);
    if (offset < -static_cast<int64_t>(kGuardBytes) || offset > static_cast<int64_t>(kSharedEnd - kSharedOffset - kGuardBytes))
        abandon(w);
    return -1;
}

// An access by thread t of w to the shared memory of the owner: w, or another block of its cluster.
static void check_shared(Worker* w, Worker* owner, const Thread* t, const Touch& touch) {
    const int64_t offset = shared_offset(w, owner, touch);
    if (offset < 0) return;
    if (misaligned(touch)) record_access(w, kMisaligned, touch, kShared, owner->rank, offset);
    const uint64_t mine = stamp_of(t);
    ShadowCell* cell = owner->shadow() + offset;
    bool unwritten = false, race = false, pending = false;
    uint64_t other = 0;
    for (uint32_t i = 0; i < touch.bytes; ++i, ++cell) {
        const uint64_t at = static_cast<uint64_t>(offset) + i;
        if (cell->write & kPending && cell->write >> 32 >= w->block_floor) {
            race = pending = true;
            other = cell->write;
        } else if (!(touch.atomic && cell->write & kAtomic) && unordered(w, owner, t, cell->write, mine, at)) {
            race = true;
            other = cell->write;
        }
        if (touch.write) {
            if (!touch.atomic && unordered(w, owner, t, cell->read, mine, at)) {
                race = true;
                other = cell->read;
            }
        }
        if (!touch.write || touch.atomic) {
            unwritten |= cell->write >> 32 < w->block_floor;
            if (!touch.atomic)
                cell->read = w->has_clocks ? known_read(w, owner, w->clock_of(t->linear), cell->read, mine, at)
                                           : merged_read(w, cell->read, mine);
        }
        if (touch.write) {
            cell->write = mine | (touch.atomic ? kAtomic : 0) | (touch.pending ? kPending : 0);
            if (w->has_clocks) cell->read = 0;
        }
    }
    if (unwritten) record_access(w, kUninitialised, touch, kShared, owner->rank, offset);
    if (race)
        record_access(w, kRace, touch, kShared, owner->rank, offset,
                      other & (kSeveralLanes | kSeveralWarps) ? kNoObject : other & kActorBits, rank_of(w, other), pending);
}

// The thread has waited for a copy of its own: to others, what it wrote is written now.
static void end_pending(Worker* w, const Thread* t, const void* address, uint32_t bytes) {
    const uint64_t offset = reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(w->shared);
    if (offset >= w->launch->shared_bytes || bytes > w->launch->shared_bytes - offset) return;
    for (uint32_t i = 0; i < bytes; ++i) w->shadow()[offset + i].write = stamp_of(t);
}

// The same for an access of the async proxy, which an agent of the owner's makes at `time` by what `clock` knows. What
// thread `self` of w did comes before. A write of the generic proxy must have come through a fence between the proxies.
static void check_async(Worker* w, Worker* owner, uint32_t self, const Clock* clock, uint32_t agent, uint32_t time,
                        const Touch& touch) {
    const int64_t offset = shared_offset(w, owner, touch);
    if (offset < 0) return;
    const uint64_t place = w->ranks > 1 ? owner->rank << 16 : 0;
    const uint64_t mine = static_cast<uint64_t>(time) << 32 | place | agent;
    ShadowCell* cell = owner->shadow() + offset;
    bool unwritten = false, race = false, unfenced = false, pending = false;
    uint64_t other = 0;
    for (uint32_t i = 0; i < touch.bytes; ++i, ++cell) {
        const uint64_t at = static_cast<uint64_t>(offset) + i;
        const uint32_t writer = cell->write & kActorBits, of = rank_of(w, cell->write);
        const uint32_t written = static_cast<uint32_t>(cell->write >> 32);
        if (written >= w->block_floor) {
            const bool is_own = writer == self && of == w->rank;
            if (cell->write & kPending || (!is_own && !is_known(w, clock, of, writer, written))) {
                race = true;
                pending = cell->write & kPending;
                other = cell->write;
            } else if (writer < kMaxThreads && clock[of].fenced[writer] < written) {
                unfenced = true;
            }
        }
        if (touch.write) {
            const uint32_t reader = cell->read & kActorBits, by = rank_of(w, cell->read);
            const bool is_own = reader == self && by == w->rank;
            if (cell->read & kSeveralWarps ? has_unknown_reader(w, owner, clock, self, at)
                                           : !is_own && !is_known(w, clock, by, reader, cell->read >> 32)) {
                race = true;
                other = cell->read;
            }
            cell->write = mine;
            cell->read = 0;
        } else {
            unwritten |= written < w->block_floor;
            cell->read = known_read(w, owner, clock, cell->read, mine, at);
        }
    }
    if (unwritten) record_access(w, kUninitialised, touch, kShared, owner->rank, offset);
    if (unfenced) record_access(w, kProxy, touch, kShared, owner->rank, offset);
    if (race)
        record_access(w, kRace, touch, kShared, owner->rank, offset,
                      other & kSeveralWarps ? kNoObject : other & kActorBits, rank_of(w, other), pending);
}

// --- global memory: a writer is atomic:1 | thread in the grid + 1:43 | barrier interval:20 --------------------

constexpr uint64_t kAtomicWriter = 1ull << 63;
constexpr uint64_t kIntervalBits = (1ull << 20) - 1;
constexpr uint64_t kUnwritten = 0;
constexpr uint64_t kFirstWriter = 1ull << 20;

// What a kernel before may still write nobody touches, and what it may still read nobody writes.
static void see_use(Worker* w, const Thread* t, const Touch& touch, Buffer& buffer, uint32_t object, int64_t offset) {
    const uint32_t held = t->has_waited ? buffer.held_behind : buffer.held;
    if (touch.write ? held : held & kUsedToWrite) record_access(w, kRace, touch, kGlobal, object, offset, kKernelBefore);
    const uint32_t use = touch.write ? kUsedToWrite : kUsedToRead;
    if (!(__atomic_load_n(&buffer.used, __ATOMIC_RELAXED) & use)) __atomic_fetch_or(&buffer.used, use, __ATOMIC_RELAXED);
}

static void check_global(Worker* w, const Thread* t, const Touch& touch, uint32_t object) {
    Buffer& buffer = w->launch->buffers[object];
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
    see_use(w, t, touch, buffer, object, offset);
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
