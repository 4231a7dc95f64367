// What the twins of templates/device's wrappers for sm_90a call.
#pragma once

#include "hooks.h"
#include "mbarrier.h"

extern "C" {
void convgen_sim_mbarrier_init(void* mbarrier, unsigned count) {
    Worker* w = this_worker();
    init_mbarrier(w, w->current, mbarrier, count, image_offset(CALLER));
}

void convgen_sim_mbarrier_inval(void* mbarrier) {
    Worker* w = this_worker();
    const uint64_t offset = offset_in_shared(w, mbarrier), pc = image_offset(CALLER);
    Mbarrier* b = find_mbarrier(w, w->current, offset, pc);
    if (!b) return;
    for (uint32_t i = 0; i < w->threads; ++i)
        if (w->state[i] == kAtMbarrier && w->thread[i].value == static_cast<uint64_t>(b - w->mbarrier))
            break_rule(w, kMbarrierMisuse, kInitInUse, pc, static_cast<int64_t>(offset));
    b->live = false;
    mark_mbarrier(w, offset, stamp_of(w->current));
}

void convgen_sim_mbarrier_arrive(void* mbarrier, unsigned count, unsigned transactions) {
    Worker* w = this_worker();
    const uint64_t pc = image_offset(CALLER);
    Mbarrier* b = find_mbarrier(w, w->current, offset_in_shared(w, mbarrier), pc);
    if (!b) return;
    if (transactions) expect_transactions(w, b, transactions, pc);
    if (count) arrive_at_mbarrier(w, w->current, b, count, pc);
}

// Until the phase of this parity has ended.
void convgen_sim_mbarrier_wait(void* mbarrier, unsigned parity) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->pc = image_offset(CALLER);
    Mbarrier* b = find_mbarrier(w, t, offset_in_shared(w, mbarrier), t->pc);
    if (!b) return;
    if ((b->phase & 1) == parity) {
        t->value = static_cast<uint64_t>(b - w->mbarrier);
        t->operand = static_cast<int>(parity);
        t->line = 0;
        wait(w, kAtMbarrier);
    }
    acquire(w, t, b->completed);
}

void convgen_sim_fence_mbarrier_init() {
    Worker* w = this_worker();
    for (uint32_t i = 0; i < w->mbarriers; ++i)
        if (w->mbarrier[i].initialiser == w->current->linear) w->mbarrier[i].fenced = true;
}

void convgen_sim_fence_proxy_async() {
    Worker* w = this_worker();
    fence_proxy(w, w->current);
}

void convgen_sim_cp_async_mbarrier_arrive(void* mbarrier) {
    Worker* w = this_worker();
    ++w->current->groups_committed;
    end_copies(w, w->current, 0);
    const uint64_t pc = image_offset(CALLER);
    if (Mbarrier* b = find_mbarrier(w, w->current, offset_in_shared(w, mbarrier), pc)) arrive_at_mbarrier(w, w->current, b, 1, pc);
}
}
