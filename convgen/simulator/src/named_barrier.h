// bar.sync and bar.arrive: barriers of some of the block's threads, by number.
#pragma once

#include "mbarrier.h"

// True if that was the last: who waited has been woken.
static bool arrive_at_barrier(Worker* w, Thread* t, uint32_t number, uint32_t count, uint64_t pc) {
    if (number == 0 || number >= kNamedBarriers) {
        break_rule(w, kMisusedBarrier, kBarrierNumber, pc, 0, number, kNamedBarriers - 1);
        abandon(w);
    }
    NamedBarrier* b = &w->barrier[number];
    if (!count || count % kWarp || (b->arrived && b->count != count))
        break_rule(w, kMisusedBarrier, b->arrived && count ? kBarrierCounts : kBarrierCount, pc, number, count, b->count);
    Clock* clock = w->clock_of(kBarrierClocks + number);
    if (!b->arrived) clear(w, clock);
    b->count = count;
    release(w, t, clock);
    if (++b->arrived < count) return false;
    b->arrived = 0;
    ++w->totals.barriers;
    acquire(w, t, clock);
    for (uint32_t i = 0; i < w->threads; ++i) {
        if (w->state[i] != kAtNamedBarrier || w->thread[i].value != number) continue;
        acquire(w, &w->thread[i], clock);
        wake(w, &w->thread[i]);
    }
    return true;
}

static void report_barrier(Worker* w, const Thread* t) {
    const NamedBarrier& b = w->barrier[t->value];
    break_rule(w, kDeadlock, kBarrierNeverFull, t->pc, b.arrived, t->value, b.count);
}
