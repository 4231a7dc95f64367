// What threads know of each other's accesses to shared memory: vector clocks, from the first synchronisation by other
// means than the block's barrier on.
//
// Times count what orders accesses. A thread's accesses bear its time, which moves on when it releases what it did to
// others; whoever acquires that knows its accesses up to there.
#pragma once

#include <string.h>

#include "worker.h"

constexpr uint64_t kSeveralReaders = 1 << 12;  // as kSeveralWarps of shadow.h

// Threads' accesses before the last barrier are known to all; agents' only to those who waited for them.
static inline bool is_known(const Worker* w, const uint32_t* known, uint32_t actor, uint64_t time) {
    return time < (actor < kMaxThreads ? w->floor : w->block_floor) || time <= known[actor];
}

static void join(uint32_t* to, const uint32_t* from) {
    for (uint32_t i = 0; i < kActors; ++i) to[i] = to[i] > from[i] ? to[i] : from[i];
}

static void join(Clock* to, const Clock& from) {
    join(to->known, from.known);
    join(to->fenced, from.fenced);
}

static void use_clocks(Worker* w) { w->has_clocks = w->launch->check; }

// Make all that t did, and knows, known to who acquires `into`.
static void release(Worker* w, Thread* t, Clock* into) {
    if (!w->launch->check) return;
    use_clocks(w);
    Clock* own = &w->clock_of[t->linear];
    own->known[t->linear] = t->time;
    join(into, *own);
    t->time = ++w->clock;
}

static void acquire(Worker* w, const Thread* t, const Clock& from) {
    if (w->launch->check) join(&w->clock_of[t->linear], from);
}

// The generic writes that t made, or knows of, become visible to the async proxy for t and who acquires from it.
static void fence_proxy(Worker* w, Thread* t) {
    if (!w->launch->check) return;
    use_clocks(w);
    Clock* own = &w->clock_of[t->linear];
    own->known[t->linear] = t->time;
    for (uint32_t i = 0; i < kMaxThreads; ++i) {
        // What the last barrier made known stands in no clock.
        const uint32_t known = own->known[i] + 1 > w->floor ? own->known[i] : w->floor - 1;
        own->fenced[i] = own->fenced[i] > known ? own->fenced[i] : known;
    }
    t->time = ++w->clock;
}

// The threads from `first` on that are `in` synchronise: each knows what any does.
template <typename In>
static void join_threads(Worker* w, uint32_t first, uint32_t count, In in) {
    if (!w->has_clocks) return;
    Clock* all = &w->joined;
    memset(all, 0, sizeof(Clock));
    for (uint32_t i = first; i < first + count; ++i) {
        if (!in(i)) continue;
        w->clock_of[i].known[i] = w->thread[i].time;
        join(all, w->clock_of[i]);
    }
    ++w->clock;
    for (uint32_t i = first; i < first + count; ++i) {
        if (!in(i)) continue;
        w->clock_of[i] = *all;
        w->thread[i].time = w->clock;
    }
}

static inline void note_reader(uint64_t* row, uint64_t stamp) {
    const uint32_t actor = stamp & 0x7ff;
    uint64_t* entry = &row[actor / kWarp];
    const uint64_t time = stamp >> 32 > *entry >> 32 ? stamp >> 32 : *entry >> 32;
    *entry = time << 32 | (*entry & 0xffffffffu) | 1ull << actor % kWarp;
}

// The reads of a byte, after one stamped `mine` by who knows `known`: `mine` alone if that follows all the others.
static uint64_t known_read(Worker* w, const uint32_t* known, uint64_t reads, uint64_t mine, uint64_t offset) {
    uint64_t* row = w->readers(offset);
    if (!(reads & kSeveralReaders)) {
        const uint32_t actor = reads & 0x7ff;
        if (actor == (mine & 0x7ff) || is_known(w, known, actor, reads >> 32)) return mine;
        memset(row, 0, kActors / kWarp * sizeof(*row));
        note_reader(row, reads);
    }
    note_reader(row, mine);
    return mine | kSeveralReaders;
}

// Of several readers of a byte, is there one besides `self` that is not known to be done?
static bool has_unknown_reader(Worker* w, const uint32_t* known, uint32_t self, uint64_t offset) {
    const uint64_t* row = w->readers(offset);
    for (uint32_t warp = 0; warp < kActors / kWarp; ++warp) {
        const uint64_t time = row[warp] >> 32;
        if (time < (warp < kMaxThreads / kWarp ? w->floor : w->block_floor)) continue;
        for (uint32_t mask = static_cast<uint32_t>(row[warp]); mask; mask &= mask - 1) {
            const uint32_t actor = warp * kWarp + static_cast<uint32_t>(__builtin_ctz(mask));
            if (actor != self && known[actor] < time) return true;
        }
    }
    return false;
}
