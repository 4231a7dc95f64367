// Recording what a kernel did wrong: the first of each kind and place, and a count.
#pragma once

#include "worker.h"

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) const char _end[];

static inline uint64_t image_offset(const void* pc) {
    return reinterpret_cast<uint64_t>(pc) - reinterpret_cast<uint64_t>(__ehdr_start);
}

static void record(Worker* w, Fault fault) {
    fault.count = 1;
    fault.block = w->block;
    fault.rank = w->rank;
    if (w->current) fault.thread = w->current->index;
    for (uint32_t i = 0; i < w->fault_count; ++i) {
        Fault& known = w->fault[i];
        const bool same_pair = fault.rule != kApart || (known.rule == kApart && known.address == fault.address);
        if (known.kind == fault.kind && known.pc == fault.pc && known.line == fault.line && same_pair) {
            ++known.count;
            return;
        }
    }
    if (w->fault_count < kMaxFaults) {
        w->fault[w->fault_count] = fault;
        __atomic_signal_fence(__ATOMIC_RELEASE);  // the watchdog may stop us here, and must find whole faults only
        ++w->fault_count;
        return;
    }
    Fault* last = w->fault;  // the least telling: it gives way to a cause that was found after it
    for (Fault& known : w->fault)
        if (known.kind > last->kind) last = &known;
    if (fault.kind < last->kind) *last = fault;
}

// Leave the block that runs, and its cluster, for good: fibers are dropped where they stand. The launch ends with it.
[[noreturn]] static void abandon(Worker* w) {
    w->cluster->abandoned = true;
    void* dropped;
    convgen_sim_switch(&dropped, w->scheduler_stack_pointer);
    __builtin_unreachable();
}

[[noreturn]] static void give_up(Worker* w, uint64_t pc, uint32_t line = 0) {
    record(w, Fault{.pc = pc, .kind = kEndless, .object = kNoObject, .line = line});
    abandon(w);
}
