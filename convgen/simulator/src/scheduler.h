// Running a block: its threads are fibers that take turns in thread order, each until it waits or ends.
#pragma once

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
    w->floor = ++w->clock;
    for (uint32_t i = 0; i < w->threads; ++i) w->thread[i].time = w->floor;
    for (uint32_t i = 0; i < w->threads; ++i)
        if (w->state[i] == kAtBarrier) wake(w, &w->thread[i]);
}

// Nobody can run: either all wait at the barrier, or all are done, or there is a deadlock.
static bool resolve(Worker* w) {
    bool at_barrier = false;
    for (uint32_t i = 0; i < w->threads; ++i) {
        if (w->state[i] == kAtMbarrier) {
            if (complete_oldest_load(w)) return true;
            w->current = &w->thread[i];
            report_stuck(w, w->current);
            w->abandoned = true;
            return false;
        }
        if (w->state[i] == kAtNamedBarrier || w->state[i] == kAtRegisters) {
            if (complete_oldest_load(w)) return true;
            w->current = &w->thread[i];
            w->state[i] == kAtRegisters ? report_registers(w, w->current) : report_barrier(w, w->current);
            w->abandoned = true;
            return false;
        }
        if (w->state[i] == kAtWarpgroup) {
            if (complete_oldest_load(w)) return true;
            w->current = &w->thread[i];
            record(w, Fault{.pc = w->current->pc, .kind = kDeadlock, .object = kNoObject, .rule = kWarpgroupNeverMeets});
            w->abandoned = true;
            return false;
        }
        if (w->state[i] == kAtWarp) {
            w->current = &w->thread[i];
            record(w, Fault{.pc = w->thread[i].pc, .kind = kDeadlock, .object = w->thread[i].mask,
                            .line = w->thread[i].line});
            w->abandoned = true;
            return false;
        }
        at_barrier |= w->state[i] == kAtBarrier;
    }
    if (at_barrier) release_barrier(w);
    return at_barrier;
}

static void run_block(Worker* w, uint64_t linear) {
    const Launch* launch = w->launch;
    w->block_linear = linear;
    w->block = Index3{static_cast<uint32_t>(linear % launch->grid.x),
                      static_cast<uint32_t>(linear / launch->grid.x % launch->grid.y),
                      static_cast<uint32_t>(linear / launch->grid.x / launch->grid.y)};
    ++w->interval;
    w->block_floor = w->floor = ++w->clock;
    w->has_clocks = false;
    forget_mbarriers(w);
    w->loads_begin = w->loads_end = w->stores = 0;
    begin_registers(w);
    for (NamedBarrier& b : w->barrier) b.arrived = 0;
    w->has_wgmma = false;
    memset(w->wgmmas, 0, sizeof(w->wgmmas));
    memset(w->wgmma_groups, 0, sizeof(w->wgmma_groups));
    w->fibers_made = w->free_fibers = 0;
    for (uint32_t i = 0; i < w->threads; ++i) {
        w->state[i] = kUnstarted;
        w->thread[i].stamp = i;
        w->thread[i].time = w->floor;
        w->thread[i].announced_left = 0;
        w->thread[i].copies_begin = w->thread[i].copies_end = w->thread[i].groups_committed = 0;
        w->thread[i].bulk_groups = 0;
        w->thread[i].wgmma_fenced = false;
    }
    for (uint32_t i = 0; i < w->warps; ++i) w->awake[i] = min_u32(kWarp, w->threads - i * kWarp);
    ++w->totals.blocks;
    do {
        const uint32_t first = next_ready(w, ~0u);
        if (first < w->threads)
            resume(w, &w->scheduler_stack_pointer, first);
        else if (!resolve(w))
            break;
    } while (!w->abandoned);
    if (w->abandoned) return;
    end_wgmmas_of_block(w);
    end_copies_of_block(w);
    end_mbarriers(w);
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
