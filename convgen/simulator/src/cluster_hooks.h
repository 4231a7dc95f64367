// What the twins of templates/device's wrappers for clusters call; their loads are in hopper_hooks.h.
#pragma once

#include "hooks.h"

extern "C" {
unsigned convgen_sim_cluster_rank() { return this_worker()->rank; }
unsigned convgen_sim_cluster_size() { return this_worker()->ranks; }

// What lies in the memory of the block of that rank where `shared` lies in the caller's.
void* convgen_sim_cluster_map(const void* shared, unsigned rank) {
    Worker* w = this_worker();
    if (rank >= w->ranks) {
        break_rule(w, kMisusedCluster, kNoRank, image_offset(CALLER), 0, rank, w->ranks);
        abandon(w);
    }
    return w->cluster->block[rank]->shared + offset_in_shared(w, shared);
}

void convgen_sim_cluster_arrive() {
    Worker* w = this_worker();
    arrive_at_cluster(w, w->current, image_offset(CALLER));
}

void convgen_sim_cluster_wait() {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->pc = image_offset(CALLER);
    if (!t->has_arrived) return break_rule(w, kMisusedCluster, kWaitsUnarrived, t->pc, 0);
    if (t->arrived_phase == w->cluster->phase) {
        t->line = 0;
        wait(w, kAtClusterBarrier);
    }
    t->has_arrived = false;
    acquire(w, t, cluster_clock(w->cluster) + w->ranks);
}

// At the mbarrier that lies there in the block of that rank; `is_release`: also of what is written to other blocks.
void convgen_sim_mbarrier_arrive_cluster(void* mbarrier, unsigned rank, int is_release) {
    Worker* w = this_worker();
    Thread* t = w->current;
    const uint64_t pc = image_offset(CALLER);
    if (rank >= w->ranks) {
        break_rule(w, kMisusedCluster, kNoRank, pc, 0, rank, w->ranks);
        abandon(w);
    }
    Worker* owner = w->cluster->block[rank];
    if (!reach(w, t, owner, pc)) return;
    Mbarrier* b = find_mbarrier(w, owner, t, offset_in_shared(w, mbarrier), pc);
    if (!b) return;
    if (is_release)
        release_to_cluster(w, t, owner->arriving(b));
    else if (owner == w)
        release(w, t, owner->arriving(b));
    else
        release_without_writes(w, t, owner->arriving(b));
    count_arrivals(w, owner, b, 1, pc);
}
}
