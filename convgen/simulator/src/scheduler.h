// Running a cluster: its blocks take turns by rank, each until none of its threads can run. Threads are fibers that take
// turns in thread order, each until it waits or ends.
#pragma once

#include "cluster.h"
#include "counters.h"
#include "faults.h"
#include "named_barrier.h"
#include "registers.h"
#include "tensor_copy.h"
#include "warp.h"
#include "wgmma.h"

constexpr uint64_t kStackMark = 0x436f6e7647656e21ull;

// Stacks start at different cache lines, lest every stack's hot end fall into the same cache sets.
static char* stack_top(Worker* w, uint32_t fiber) {
    return w->stack(fiber) + kStackBytes - (fiber % 61) * 192;
}

static void fiber_main();

static void start_fiber(Worker* w, Thread* t) {
    const uint32_t fiber = w->free_fibers ? w->free_fiber[--w->free_fibers] : w->fibers_made++;
    t->fiber = fiber;
    *reinterpret_cast<uint64_t*>(w->stack(fiber)) = kStackMark;
    t->stack_pointer = make_context(stack_top(w, fiber), fiber_main);
}

// First thread after `linear` that can run; w->threads if none.
static uint32_t next_ready(Worker* w, uint32_t linear) {
    for (++linear; linear < w->threads; ++linear)
        if (w->state[linear] <= kRunnable) break;
    return linear;
}

// Leave the running context, saved in *save, for thread `linear`; for the scheduler if that is w->threads.
static void resume(Worker* w, void** save, uint32_t linear) {
    if (linear == w->threads) {
        w->current = nullptr;
        convgen_sim_switch(save, w->scheduler_stack_pointer);
        return;
    }
    Thread* next = &w->thread[linear];
    if (w->state[linear] == kUnstarted) start_fiber(w, next);
    w->state[linear] = kRunnable;
    w->current = next;
    convgen_sim_switch(save, next->stack_pointer);
}

static void check_stack(Worker* w, Thread* t) {
    if (*reinterpret_cast<uint64_t*>(w->stack(t->fiber)) == kStackMark) return;
    record(w, Fault{.kind = kStackOverflow, .object = kNoObject});
    abandon(w);
}

// The current thread stops in `state`, unless what it waits for comes about by its own arrival.
static void wait(Worker* w, State state) {
    Thread* t = w->current;
    check_stack(w, t);
    if (__atomic_load_n(&w->expired, __ATOMIC_RELAXED) && state != kTraceFull) give_up(w, 0, t->line);
    w->state[t->linear] = state;
    fall_asleep(w, t);
    if (w->state[t->linear] == kRunnable) return;
    resume(w, &t->stack_pointer, next_ready(w, t->linear));
}

static void fiber_main() {
    Worker* w = this_worker();
    for (;;) {
        Thread* t = w->current;
        w->launch->entry(w->launch->arguments);
        check_stack(w, t);
        w->state[t->linear] = kDone;
        leave_cluster(w, t);
        fall_asleep(w, t);
        const uint32_t next = next_ready(w, t->linear);
        if (next < w->threads && w->state[next] == kUnstarted) {  // become the next thread, on the same warm stack
            w->thread[next].fiber = t->fiber;
            w->state[next] = kRunnable;
            w->current = &w->thread[next];
            continue;
        }
        w->free_fiber[w->free_fibers++] = t->fiber;
        void* dropped;
        resume(w, &dropped, next);
    }
}

static void release_barrier(Worker* w) {
    Thread* first = nullptr;
    const Thread* other = nullptr;
    int count = 0, every = 1, any = 0;
    for (uint32_t i = 0; i < w->threads; ++i) {
        Thread* t = &w->thread[i];
        if (w->state[i] != kAtBarrier) continue;
        if (!first) first = t;
        if (t->line != first->line && !other) other = t;
        count += t->predicate;
        every &= t->predicate;
        any |= t->predicate;
    }
    for (uint32_t i = 0; i < w->threads && !other; ++i)
        if (w->state[i] == kDone) other = &w->thread[i];
    if (other && w->launch->check) {
        w->current = first;
        const bool exited = w->state[other->linear] == kDone;
        record(w, Fault{.kind = kDivergentBarrier, .object = kNoObject, .line = first->line,
                        .other_line = exited ? 0 : other->line, .other_thread = other->linear});
    }
    w->barrier_result = first->operation == 1 ? count : first->operation == 2 ? every : any;
    ++w->interval;
    ++w->totals.barriers;
    join_threads(w, 0, w->threads, [&](uint32_t i) { return w->state[i] == kAtBarrier; });
    w->floor = ++w->cluster->clock;
    for (uint32_t i = 0; i < w->threads; ++i) w->thread[i].time = w->floor;
    for (uint32_t i = 0; i < w->threads; ++i)
        if (w->state[i] == kAtBarrier) wake(w, &w->thread[i]);
}

// What a block is at when none of its threads can run.
enum Standing { kIsOver, kMeets, kIsStuck };

static Standing standing(const Worker* w) {
    for (uint32_t i = 0; i < w->threads; ++i)
        if (w->state[i] != kDone && w->state[i] != kAtBarrier) return kIsStuck;
    return w->live ? kMeets : kIsOver;
}

static void end_block(Worker* w) {
    if (w->is_over) return;
    w->is_over = true;
    end_wgmmas_of_block(w);
    end_copies_of_block(w);
    end_mbarriers(w);
    end_visits(w);
}

// A thread of the block that waits for what never comes, at an mbarrier if there is one: that tells most.
static void report_deadlock(Worker* w) {
    Thread* waiting = nullptr;
    for (uint32_t i = 0; i < w->threads; ++i) {
        if (w->state[i] == kDone || w->state[i] == kAtBarrier) continue;
        if (!waiting || (w->state[i] == kAtMbarrier && w->state[waiting->linear] != kAtMbarrier)) waiting = &w->thread[i];
    }
    w->current = waiting;
    switch (w->state[waiting->linear]) {
        case kAtMbarrier:
            break_rule(w, kDeadlock, kPhaseNeverEnds, waiting->pc, w->mbarrier[waiting->value].offset,
                       static_cast<uint64_t>(waiting->operand));
            break;
        case kAtNamedBarrier: report_barrier(w, waiting); break;
        case kAtRegisters: report_registers(w, waiting); break;
        case kAtClusterBarrier: report_cluster_barrier(w, waiting); break;
        case kAtWarpgroup: break_rule(w, kDeadlock, kWarpgroupNeverMeets, waiting->pc, 0); break;
        default:
            record(w, Fault{.pc = waiting->pc, .kind = kDeadlock, .object = waiting->mask, .line = waiting->line});
    }
}

// Nobody can run: blocks are over, or meet at their barrier, or wait for a copy or for each other, or there is a deadlock.
static bool resolve(Cluster* cluster) {
    bool goes_on = false, is_stuck = false;
    for (uint32_t rank = 0; rank < cluster->size; ++rank) {
        Worker* w = cluster->block[rank];
        switch (standing(w)) {
            case kIsOver: end_block(w); break;
            case kMeets: release_barrier(w), goes_on = true; break;
            case kIsStuck: is_stuck = true;
        }
    }
    if (goes_on) return true;
    if (!is_stuck) return false;
    if (complete_a_load(cluster)) return true;
    keep_mbarriers(cluster);
    for (uint32_t rank = 0; rank < cluster->size; ++rank)
        if (cluster->block[rank]->live) report_deadlock(cluster->block[rank]);
    cluster->abandoned = true;
    return false;
}

static Index3 index_of(uint64_t linear, Index3 extent) {
    return Index3{static_cast<uint32_t>(linear % extent.x), static_cast<uint32_t>(linear / extent.x % extent.y),
                  static_cast<uint32_t>(linear / extent.x / extent.y)};
}

static void begin_block(Worker* w, Index3 block) {
    const Launch* launch = w->launch;
    w->block = block;
    w->block_linear = (static_cast<uint64_t>(block.z) * launch->grid.y + block.y) * launch->grid.x + block.x;
    w->live = w->threads;
    w->is_over = false;
    ++w->interval;
    w->block_floor = w->floor = w->cluster->clock;
    w->has_clocks = launch->check && w->ranks > 1;
    forget_mbarriers(w);
    w->loads_begin = w->loads_end = w->stores = 0;
    begin_registers(w);
    for (NamedBarrier& b : w->barrier) b.arrived = 0;
    w->has_wgmma = false;
    memset(w->wgmmas, 0, sizeof(w->wgmmas));
    memset(w->wgmma_groups, 0, sizeof(w->wgmma_groups));
    if (w->ranks > 1) memset(w->visit, 0, w->ranks * sizeof(w->visit[0]));
    w->fibers_made = w->free_fibers = 0;
    for (uint32_t i = 0; i < w->threads; ++i) {
        Thread* t = &w->thread[i];
        w->state[i] = kUnstarted;
        t->stamp = (w->ranks > 1 ? w->rank << 16 : 0) | i;
        t->time = w->floor;
        t->announced_left = 0;
        t->copies_begin = t->copies_end = t->groups_committed = 0;
        t->bulk_groups = 0;
        t->wgmma_fenced = t->has_waited = t->has_arrived = false;
        t->started = 0;
        t->remote_writes = Span{};
    }
    for (uint32_t i = 0; i < w->warps; ++i) w->awake[i] = min_u32(kWarp, w->threads - i * kWarp);
    ++w->totals.blocks;
}

static void begin_cluster(Cluster* cluster, uint64_t linear) {
    const Launch* launch = cluster->block[0]->launch;
    const Index3 extent = launch->cluster;
    const Index3 at = index_of(linear, Index3{launch->grid.x / extent.x, launch->grid.y / extent.y, launch->grid.z / extent.z});
    ++cluster->clock;
    cluster->arrived = cluster->absent = 0;
    for (uint32_t rank = 0; rank < cluster->size; ++rank) {
        const Index3 within = index_of(rank, extent);
        begin_block(cluster->block[rank], Index3{at.x * extent.x + within.x, at.y * extent.y + within.y, at.z * extent.z + within.z});
    }
}

static void run_cluster(Cluster* cluster, uint64_t linear) {
    begin_cluster(cluster, linear);
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (uint32_t rank = 0; rank < cluster->size; ++rank) {
            Worker* w = cluster->block[rank];
            const uint32_t first = next_ready(w, ~0u);
            if (first == w->threads) continue;
            resume(w, &w->scheduler_stack_pointer, first);
            if (cluster->abandoned) return;
            goes_on = true;
        }
        goes_on = goes_on || resolve(cluster);
    }
}

// The current thread waits for the lanes of its mask; the result that the operation has for it.
static uint64_t meet_warp(int kind, unsigned mask, uint64_t value, int operand, int width, int line, uint64_t pc) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->operation = kind;
    t->mask = mask;
    t->value = value;
    t->operand = operand;
    t->width = width;
    t->line = line;
    t->pc = pc;
    wait(w, kAtWarp);
    return t->result;
}

// The current thread waits for the others of its warpgroup.
static void meet_warpgroup(int operation, uint64_t value, int operand, uint64_t pc) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->operation = operation;
    t->value = value;
    t->operand = operand;
    t->line = 0;
    t->pc = pc;
    wait(w, kAtWarpgroup);
}

extern "C" {
Index3 convgen_sim_thread_index() { return this_worker()->current->index; }
Index3 convgen_sim_block_index() { return this_worker()->block; }
Index3 convgen_sim_block_dim() { return this_worker()->launch->block; }
Index3 convgen_sim_grid_dim() { return this_worker()->launch->grid; }
void* convgen_sim_shared() { return this_worker()->shared; }

int convgen_sim_barrier(int kind, int predicate, int line) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->operation = kind;
    t->predicate = predicate;
    t->line = line;
    t->pc = 0;
    wait(w, kAtBarrier);
    return w->barrier_result;
}

uint64_t convgen_sim_warp(int kind, unsigned mask, uint64_t value, int operand, int width, int line) {
    return meet_warp(kind, mask, value, operand, width, line, 0);
}

unsigned convgen_sim_active_mask() {
    Worker* w = this_worker();
    const uint32_t base = w->current->linear & ~(kWarp - 1);
    unsigned mask = 0;
    for (uint32_t lane = 0; lane < kWarp && base + lane < w->threads; ++lane)
        if (w->state[base + lane] != kDone) mask |= 1u << lane;
    return mask;
}

void convgen_sim_trap(int line) {
    Worker* w = this_worker();
    record(w, Fault{.kind = kTrap, .object = kNoObject, .line = static_cast<uint32_t>(line)});
    abandon(w);
}
}
