// Thread block clusters: blocks that run at the same time, meet at a barrier of all their threads and reach each other's
// shared memory.
#pragma once

#include "mbarrier.h"

// The block whose memory an address lies in; null if it is none of the cluster's.
static Worker* block_at(const Worker* w, uint64_t address) {
    for (uint32_t rank = 0; rank < w->ranks; ++rank)
        if (address - reinterpret_cast<uint64_t>(w->cluster->block[rank]) < kRegionBytes) return w->cluster->block[rank];
    return nullptr;
}

// Whether t knows that the other block has begun: it has what any of its threads released.
static bool knows_start(Worker* w, Thread* t, const Worker* other) {
    if (t->started >> other->rank & 1) return true;
    const Clock* clock = w->clock_of(t->linear) + other->rank;
    bool knows = false;
    for (uint32_t i = 0; i < other->threads && !knows; ++i) knows = clock->known[i] >= w->block_floor;
    if (knows) t->started |= 1u << other->rank;
    return knows;
}

// Whether the owner's memory is there for t. The block must have started, for all that t knows.
static bool is_there(Worker* w, Thread* t, const Worker* owner, uint64_t pc) {
    if (owner == w) return true;
    if (!owner->live) {
        break_rule_at(w, owner, kMisusedCluster, kExitUnknown, pc, 0, owner->rank);
        return false;
    }
    if (w->launch->check && !knows_start(w, t, owner)) break_rule_at(w, owner, kMisusedCluster, kStartUnknown, pc, 0, owner->rank);
    return true;
}

// Thread t itself comes to the owner's memory, or an mbarrier there; false if nobody is there any more. That the owner's end
// comes after is looked at when it ends.
static bool reach(Worker* w, Thread* t, Worker* owner, uint64_t pc) {
    if (!is_there(w, t, owner, pc)) return false;
    if (owner != w && w->launch->check) owner->visit[w->rank][t->linear] = Visit{pc, t->time};
    return true;
}

// The block is at its end: of every access by another block, a thread of this one must have known.
static void end_visits(Worker* w) {
    if (w->ranks == 1 || !w->launch->check) return;
    Clock* all = w->clock_of(kJoinedClock);
    clear(w, all);
    for (uint32_t i = 0; i < w->threads; ++i) join(w, all, w->clock_of(i));
    for (uint32_t rank = 0; rank < w->ranks; ++rank) {
        Worker* visitor = w->cluster->block[rank];
        Thread* const running = visitor->current;
        for (uint32_t i = 0; i < w->threads; ++i) {
            const Visit& visit = w->visit[rank][i];
            if (visit.time <= all[rank].known[i]) continue;
            visitor->current = &visitor->thread[i];
            break_rule_at(visitor, w, kMisusedCluster, kExitUnknown, visit.pc, 0, w->rank);
        }
        visitor->current = running;
    }
}

// --- barrier.cluster: a phase ends when all threads that have not ended have come ------------------------------

static Clock* cluster_clock(const Cluster* cluster) { return cluster->block[0]->clock_of(kClusterClocks); }

static void end_cluster_phase_if_due(Cluster* cluster) {
    Worker* first = cluster->block[0];
    if (!cluster->arrived || cluster->arrived + cluster->absent < cluster->size * first->threads) return;
    Clock* arriving = cluster_clock(cluster);
    if (first->launch->check) join(first, arriving + cluster->size, arriving);
    ++cluster->phase;
    ++first->totals.barriers;
    cluster->arrived = cluster->absent = 0;
    ++cluster->clock;
    for (uint32_t rank = 0; rank < cluster->size; ++rank) {
        Worker* w = cluster->block[rank];
        cluster->absent += w->threads - w->live;
        for (uint32_t i = 0; i < w->threads; ++i) {
            w->thread[i].time = cluster->clock;  // one for all, which is what a warp's reads are kept by
            if (w->state[i] == kAtClusterBarrier) wake(w, &w->thread[i]);
        }
    }
}

static void arrive_at_cluster(Worker* w, Thread* t, uint64_t pc) {
    if (t->has_arrived) return break_rule(w, kMisusedCluster, kArrivesTwice, pc, 0);
    t->has_arrived = true;
    t->arrived_phase = w->cluster->phase;
    release_to_cluster(w, t, cluster_clock(w->cluster));
    ++w->cluster->arrived;
    end_cluster_phase_if_due(w->cluster);
}

// The thread has ended: nobody waits for it.
static void leave_cluster(Worker* w, const Thread* t) {
    Cluster* cluster = w->cluster;
    --w->live;
    if (!t->has_arrived || t->arrived_phase != cluster->phase) ++cluster->absent;
    end_cluster_phase_if_due(cluster);
}

static void report_cluster_barrier(Worker* w, const Thread* t) {
    const Cluster* cluster = w->cluster;
    break_rule(w, kDeadlock, kClusterNeverMeets, t->pc, cluster->arrived, cluster->size * w->threads, cluster->absent);
}
