// What threads know of each other's accesses to shared memory: vector clocks, from the first synchronisation by other
// means than the block's barrier on; in clusters from the start.
//
// Times count what orders accesses, in a cluster by one clock. A thread's accesses bear its time, which moves on when it
// releases what it did to others; whoever acquires that knows its accesses up to there.
#pragma once

#include <string.h>

#include "worker.h"

constexpr uint64_t kSeveralReaders = 1 << 12;  // as kSeveralWarps of shadow.h
constexpr uint32_t kReaderWords = kActors / kWarp;

static inline uint32_t rank_of(const Worker* w, uint64_t stamp) { return w->ranks > 1 ? stamp >> 16 & 0xffff : 0; }

static inline bool same_actor(const Worker* w, uint64_t a, uint64_t b) { return !((a ^ b) & w->actor_bits); }

// Up to when all actors of a kind are done, as far as those of the block know. Threads' accesses before its last barrier
// are known to all of them, agents' only to those who waited for them.
static inline uint32_t common_floor(const Worker* w, uint32_t rank, uint32_t actor) {
    return actor < kMaxThreads && rank == w->rank ? w->floor : w->block_floor;
}

static inline bool is_known(const Worker* w, const Clock* clock, uint32_t rank, uint32_t actor, uint64_t time) {
    return time < common_floor(w, rank, actor) || time <= clock[rank].known[actor];
}

static void join(Clock* to, const Clock* from) {
    for (uint32_t i = 0; i < kActors; ++i) {
        to->known[i] = to->known[i] > from->known[i] ? to->known[i] : from->known[i];
        to->fenced[i] = to->fenced[i] > from->fenced[i] ? to->fenced[i] : from->fenced[i];
    }
}

static void join(const Worker* w, Clock* to, const Clock* from) {
    for (uint32_t rank = 0; rank < w->ranks; ++rank) join(&to[rank], &from[rank]);
}

// What both know.
static void meet(Clock* to, const Clock* from) {
    for (uint32_t i = 0; i < kActors; ++i) {
        to->known[i] = to->known[i] < from->known[i] ? to->known[i] : from->known[i];
        to->fenced[i] = to->fenced[i] < from->fenced[i] ? to->fenced[i] : from->fenced[i];
    }
}

static void clear(const Worker* w, Clock* clock) { memset(clock, 0, w->ranks * sizeof(Clock)); }

static void use_clocks(Worker* w) { w->has_clocks = w->launch->check; }

// The thread's clock, its own accesses up to now included.
static Clock* own_clock(Worker* w, const Thread* t) {
    Clock* own = w->clock_of(t->linear);
    own[w->rank].known[t->linear] = t->time;
    return own;
}

// Make all that t did, and knows, known to who acquires `into`.
static void release(Worker* w, Thread* t, Clock* into) {
    if (!w->launch->check) return;
    use_clocks(w);
    join(w, into, own_clock(w, t));
    t->time = ++w->cluster->clock;
}

// A write to another block's memory: only a release to the cluster lets others know of it.
static void note_remote_write(Thread* t) {
    if (!t->remote_writes.last) t->remote_writes.first = t->time;
    t->remote_writes.last = t->time;
}

// As `release`, to all of the cluster. Of other threads of the block what t knows of goes along.
static void release_to_cluster(Worker* w, Thread* t, Clock* into) {
    if (!w->launch->check) return;
    const Clock* own = own_clock(w, t) + w->rank;
    for (uint32_t i = 0; i < w->threads; ++i) {
        Span* writes = &w->thread[i].remote_writes;
        if (own->known[i] < writes->first) continue;
        *writes = own->known[i] < writes->last ? Span{own->known[i] + 1, writes->last} : Span{};
    }
    release(w, t, into);
}

// As `release`, without writes to other blocks' memory that have not been released to the cluster.
static void release_without_writes(Worker* w, Thread* t, Clock* into) {
    if (!w->launch->check) return;
    Clock* told = w->clock_of(kJoinedClock);
    memcpy(told, own_clock(w, t), w->ranks * sizeof(Clock));
    for (uint32_t i = 0; i < w->threads; ++i) {
        const Span& writes = w->thread[i].remote_writes;
        uint32_t* known = &told[w->rank].known[i];
        if (writes.last && *known >= writes.first) *known = writes.first - 1;
    }
    join(w, into, told);
    t->time = ++w->cluster->clock;
}

static void acquire(Worker* w, const Thread* t, const Clock* from) {
    if (w->launch->check) join(w, w->clock_of(t->linear), from);
}

// The generic writes that t made, or knows of, become visible to the async proxy for t and who acquires from it.
static void fence_proxy(Worker* w, Thread* t) {
    if (!w->launch->check) return;
    use_clocks(w);
    Clock* own = own_clock(w, t);
    for (uint32_t rank = 0; rank < w->ranks; ++rank) {
        const uint32_t floor = common_floor(w, rank, 0);  // what the last barrier made known stands in no clock
        for (uint32_t i = 0; i < kMaxThreads; ++i) {
            const uint32_t known = own[rank].known[i] + 1 > floor ? own[rank].known[i] : floor - 1;
            own[rank].fenced[i] = own[rank].fenced[i] > known ? own[rank].fenced[i] : known;
        }
    }
    t->time = ++w->cluster->clock;
}

// The threads from `first` on that are `in` synchronise: each knows what any does.
template <typename In>
static void join_threads(Worker* w, uint32_t first, uint32_t count, In in) {
    if (!w->has_clocks) return;
    Clock* all = w->clock_of(kJoinedClock);
    clear(w, all);
    for (uint32_t i = first; i < first + count; ++i)
        if (in(i)) join(w, all, own_clock(w, &w->thread[i]));
    // Nobody has read or written later than now; readers of a byte are noted by warp, at the latest time of its lanes.
    for (uint32_t i = first; i < first + count; ++i)
        if (in(i)) all[w->rank].known[i] = w->cluster->clock;
    ++w->cluster->clock;
    for (uint32_t i = first; i < first + count; ++i) {
        if (!in(i)) continue;
        memcpy(w->clock_of(i), all, w->ranks * sizeof(Clock));
        w->thread[i].time = w->cluster->clock;
    }
}

static inline void note_reader(uint64_t* row, uint32_t rank, uint64_t stamp) {
    const uint32_t actor = stamp & 0x7ff;
    uint64_t* entry = &row[rank * kReaderWords + actor / kWarp];
    const uint64_t time = stamp >> 32 > *entry >> 32 ? stamp >> 32 : *entry >> 32;
    *entry = time << 32 | (*entry & 0xffffffffu) | 1ull << actor % kWarp;
}

// The reads of a byte of the owner's, after one stamped `mine` by who has this clock: `mine` alone if that follows all the
// others.
static uint64_t known_read(Worker* w, Worker* owner, const Clock* clock, uint64_t reads, uint64_t mine, uint64_t offset) {
    if (reads >> 32 < w->block_floor) return mine;
    uint64_t* row = owner->readers_of(offset);
    if (!(reads & kSeveralReaders)) {
        if (same_actor(w, reads, mine) || is_known(w, clock, rank_of(w, reads), reads & 0x7ff, reads >> 32)) return mine;
        memset(row, 0, w->ranks * kReaderWords * sizeof(*row));
        note_reader(row, rank_of(w, reads), reads);
    }
    note_reader(row, rank_of(w, mine), mine);
    return mine | kSeveralReaders;
}

// Of several readers of a byte of the owner's, is there one besides thread `self` that is not known to be done?
static bool has_unknown_reader(Worker* w, Worker* owner, const Clock* clock, uint32_t self, uint64_t offset) {
    const uint64_t* row = owner->readers_of(offset);
    for (uint32_t rank = 0; rank < w->ranks; ++rank, row += kReaderWords) {
        for (uint32_t warp = 0; warp < kReaderWords; ++warp) {
            const uint64_t time = row[warp] >> 32;
            if (time < common_floor(w, rank, warp * kWarp)) continue;
            for (uint32_t mask = static_cast<uint32_t>(row[warp]); mask; mask &= mask - 1) {
                const uint32_t actor = warp * kWarp + static_cast<uint32_t>(__builtin_ctz(mask));
                if (!(actor == self && rank == w->rank) && clock[rank].known[actor] < time) return true;
            }
        }
    }
    return false;
}
