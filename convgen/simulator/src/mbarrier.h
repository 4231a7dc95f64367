// mbarriers: arrivals and transactions that end a phase, and who waits for that.
//
// A phase ends when its arrivals have come and its transaction count is zero; the count of the next starts at once.
#pragma once

#include "clocks.h"
#include "faults.h"
#include "shadow.h"
#include "warp.h"

constexpr int32_t kMaxTransactions = (1 << 20) - 1;
constexpr uint32_t kMaxArrivals = (1 << 20) - 1;

static void break_rule(Worker* w, FaultKind kind, Rule rule, uint64_t pc, int64_t offset, uint64_t value = 0, uint64_t wanted = 0) {
    record(w, Fault{.pc = pc, .address = value, .wanted = wanted, .offset = offset, .kind = kind, .space = kShared,
                    .object = kNoObject, .rule = rule});
}

static uint64_t offset_in_shared(const Worker* w, const void* address) {
    return reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(w->shared);
}

// The mbarrier at an address, or null if none has been initialised there: a fault of t's.
static Mbarrier* find_mbarrier(Worker* w, const Thread* t, uint64_t offset, uint64_t pc) {
    for (uint32_t i = 0; i < w->mbarriers; ++i) {
        Mbarrier* b = &w->mbarrier[i];
        if (!b->live || b->offset != offset) continue;
        if (b->initialiser != t->linear && w->launch->check &&
            !is_known(w, w->clock_of[t->linear].known, b->initialiser, b->init_time))
            break_rule(w, kMbarrierMisuse, kInitUnknown, pc, static_cast<int64_t>(offset));
        return b;
    }
    break_rule(w, kMbarrierMisuse, kNoMbarrier, pc, static_cast<int64_t>(offset));
    return nullptr;
}

// Nobody touches an mbarrier's bytes but through it: they bear the stamp of an actor whom nobody knows.
static void mark_mbarrier(Worker* w, uint64_t offset, uint64_t stamp) {
    if (offset + 8 > w->launch->shared_bytes) return;
    for (uint32_t i = 0; i < 8; ++i) w->shadow()[offset + i] = ShadowCell{stamp, 0};
}

static void init_mbarrier(Worker* w, Thread* t, const void* address, uint32_t count, uint64_t pc) {
    const uint64_t offset = offset_in_shared(w, address);
    for (uint32_t i = 0; i < w->mbarriers; ++i) {
        if (!w->mbarrier[i].live || w->mbarrier[i].offset != offset) continue;
        break_rule(w, kMbarrierMisuse, kInitInUse, pc, static_cast<int64_t>(offset));
        w->mbarrier[i].live = false;
    }
    if (count == 0 || count > kMaxArrivals) break_rule(w, kMbarrierMisuse, kArrivalCount, pc, static_cast<int64_t>(offset), count);
    if (w->mbarriers == kMbarriers) {
        break_rule(w, kMbarrierMisuse, kTooManyMbarriers, pc, static_cast<int64_t>(offset), 0, kMbarriers);
        abandon(w);
    }
    if (w->launch->check) {
        use_clocks(w);
        check_shared(w, t, Touch{reinterpret_cast<uint64_t>(address), pc, 8, true, false});
        mark_mbarrier(w, offset, 0xffffffffull << 32 | kOpaqueActor);
    }
    Mbarrier* b = &w->mbarrier[w->mbarriers++];
    memset(b, 0, sizeof(*b));
    b->offset = offset;
    b->expected = b->pending = count;
    b->initialiser = t->linear;
    b->init_time = t->time;
    b->live = true;
}

static void end_phase_if_due(Worker* w, Mbarrier* b) {
    if (b->pending || b->bytes) return;
    ++b->phase;
    b->pending = b->expected;
    join(&b->completed, b->arriving);
    const uint64_t index = static_cast<uint64_t>(b - w->mbarrier);
    for (uint32_t i = 0; i < w->threads; ++i) {
        Thread* t = &w->thread[i];
        if (w->state[i] == kAtMbarrier && t->value == index && (b->phase & 1) != static_cast<uint32_t>(t->operand)) wake(w, t);
    }
}

static void expect_transactions(Worker* w, Mbarrier* b, uint32_t bytes, uint64_t pc) {
    b->bytes += static_cast<int32_t>(bytes);
    b->expect_pc = pc;
    if (bytes > static_cast<uint32_t>(kMaxTransactions) || b->bytes > kMaxTransactions)
        break_rule(w, kMbarrierMisuse, kTransactionCount, pc, static_cast<int64_t>(b->offset), bytes, kMaxTransactions);
}

static void arrive_at_mbarrier(Worker* w, Thread* t, Mbarrier* b, uint32_t count, uint64_t pc) {
    if (count > b->pending) {
        break_rule(w, kMbarrierMisuse, kTooManyArrivals, pc, static_cast<int64_t>(b->offset), count, b->pending);
        count = b->pending;
    }
    release(w, t, &b->arriving);
    b->pending -= count;
    end_phase_if_due(w, b);
}

// Bytes of a copy have come, all that their agent did up to `time` is done.
static void complete_transactions(Worker* w, Mbarrier* b, uint32_t bytes, uint32_t time) {
    const uint32_t agent = kMbarrierAgents + static_cast<uint32_t>(b - w->mbarrier);
    if (b->arriving.known[agent] < time) b->arriving.known[agent] = time;
    b->bytes -= static_cast<int32_t>(bytes);
    end_phase_if_due(w, b);
}

// The thread waits for what never comes: how each mbarrier stands.
static void report_stuck(Worker* w, const Thread* t) {
    const Launch* launch = w->launch;
    record(w, Fault{.pc = t->pc, .address = static_cast<uint64_t>(t->operand),
                    .offset = static_cast<int64_t>(w->mbarrier[t->value].offset), .kind = kDeadlock, .object = kNoObject,
                    .rule = kPhaseNeverEnds});
    if (__atomic_exchange_n(launch->mbarriers_taken, 1u, __ATOMIC_RELAXED)) return;
    for (uint32_t i = 0; i < w->mbarriers; ++i) {
        const Mbarrier& b = w->mbarrier[i];
        if (b.live) launch->mbarriers[i] = MbarrierState{b.offset, b.phase, b.expected, b.pending, b.bytes};
    }
}

static void forget_mbarriers(Worker* w) {
    for (uint32_t i = 0; i < w->mbarriers; ++i)
        if (w->mbarrier[i].live) mark_mbarrier(w, w->mbarrier[i].offset, 0);
    w->mbarriers = 0;
}

// The block is at its end: nothing may be under way.
static void end_mbarriers(Worker* w) {
    for (uint32_t i = 0; i < w->mbarriers; ++i) {
        const Mbarrier& b = w->mbarrier[i];
        if (b.live && b.bytes)
            break_rule(w, kMbarrierMisuse, kBytesLeft, b.expect_pc, static_cast<int64_t>(b.offset), static_cast<uint64_t>(b.bytes));
    }
}
