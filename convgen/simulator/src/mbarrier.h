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

// `offset` lies in the owner's shared memory: w's, or that of another block of its cluster.
static void break_rule_at(Worker* w, const Worker* owner, FaultKind kind, Rule rule, uint64_t pc, uint64_t offset,
                          uint64_t value = 0, uint64_t wanted = 0) {
    record(w, Fault{.pc = pc, .address = value, .wanted = wanted, .offset = static_cast<int64_t>(offset), .kind = kind,
                    .space = kShared, .object = owner->rank, .rule = rule});
}

static void break_rule(Worker* w, FaultKind kind, Rule rule, uint64_t pc, uint64_t offset, uint64_t value = 0, uint64_t wanted = 0) {
    break_rule_at(w, w, kind, rule, pc, offset, value, wanted);
}

static uint64_t offset_in_shared(const Worker* w, const void* address) {
    return reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(w->shared);
}

// The owner's mbarrier at an offset, or null if none has been initialised there: a fault of t's.
static Mbarrier* find_mbarrier(Worker* w, Worker* owner, const Thread* t, uint64_t offset, uint64_t pc) {
    for (uint32_t i = 0; i < owner->mbarriers; ++i) {
        Mbarrier* b = &owner->mbarrier[i];
        if (!b->live || b->offset != offset) continue;
        const bool is_own = owner == w && b->initialiser == t->linear;
        if (!is_own && w->launch->check && !is_known(w, w->clock_of(t->linear), owner->rank, b->initialiser, b->init_time))
            break_rule_at(w, owner, kMbarrierMisuse, kInitUnknown, pc, offset);
        return b;
    }
    break_rule_at(w, owner, kMbarrierMisuse, kNoMbarrier, pc, offset);
    return nullptr;
}

// Nobody touches an mbarrier's bytes but through it: they bear the stamp of an actor whom nobody knows.
static void mark_mbarrier(Worker* w, uint64_t offset, uint64_t stamp) {
    if (offset + 8 > kMaxSharedBytes) return;  // not the launch's: they are forgotten when another has begun
    for (uint32_t i = 0; i < 8; ++i) w->shadow()[offset + i] = ShadowCell{stamp, 0};
}

static void init_mbarrier(Worker* w, Thread* t, const void* address, uint32_t count, uint64_t pc) {
    const uint64_t offset = offset_in_shared(w, address);
    for (uint32_t i = 0; i < w->mbarriers; ++i) {
        if (!w->mbarrier[i].live || w->mbarrier[i].offset != offset) continue;
        break_rule(w, kMbarrierMisuse, kInitInUse, pc, offset);
        w->mbarrier[i].live = false;
    }
    if (count == 0 || count > kMaxArrivals) break_rule(w, kMbarrierMisuse, kArrivalCount, pc, offset, count);
    if (w->mbarriers == kMbarriers) {
        break_rule(w, kMbarrierMisuse, kTooManyMbarriers, pc, offset, 0, kMbarriers);
        abandon(w);
    }
    if (w->launch->check) {
        use_clocks(w);
        check_shared(w, w, t, Touch{reinterpret_cast<uint64_t>(address), pc, 8, true, false});
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

static void end_phase_if_due(Worker* owner, Mbarrier* b) {
    if (b->pending || b->bytes) return;
    ++b->phase;
    b->pending = b->expected;
    if (owner->launch->check) join(owner, owner->completed(b), owner->arriving(b));
    const uint64_t index = static_cast<uint64_t>(b - owner->mbarrier);
    for (uint32_t i = 0; i < owner->threads; ++i) {
        Thread* t = &owner->thread[i];
        if (owner->state[i] == kAtMbarrier && t->value == index && (b->phase & 1) != static_cast<uint32_t>(t->operand))
            wake(owner, t);
    }
}

static void expect_transactions(Worker* w, Mbarrier* b, uint32_t bytes, uint64_t pc) {
    b->bytes += static_cast<int32_t>(bytes);
    b->expect_pc = pc;
    if (bytes > static_cast<uint32_t>(kMaxTransactions) || b->bytes > kMaxTransactions)
        break_rule(w, kMbarrierMisuse, kTransactionCount, pc, b->offset, bytes, kMaxTransactions);
}

static void count_arrivals(Worker* w, Worker* owner, Mbarrier* b, uint32_t count, uint64_t pc) {
    if (count > b->pending) {
        break_rule_at(w, owner, kMbarrierMisuse, kTooManyArrivals, pc, b->offset, count, b->pending);
        count = b->pending;
    }
    b->pending -= count;
    end_phase_if_due(owner, b);
}

static void arrive_at_mbarrier(Worker* w, Thread* t, Mbarrier* b, uint32_t count, uint64_t pc) {
    release(w, t, w->arriving(b));
    count_arrivals(w, w, b, count, pc);
}

// Bytes of a copy have come, all that their agent did up to `time` is done.
static void complete_transactions(Worker* owner, Mbarrier* b, uint32_t bytes, uint32_t time) {
    uint32_t* known = &owner->arriving(b)[owner->rank].known[kMbarrierAgents + static_cast<uint32_t>(b - owner->mbarrier)];
    if (*known < time) *known = time;
    b->bytes -= static_cast<int32_t>(bytes);
    end_phase_if_due(owner, b);
}

// How each mbarrier of the cluster stands, for the report of a deadlock.
static void keep_mbarriers(const Cluster* cluster) {
    const Launch* launch = cluster->block[0]->launch;
    if (__atomic_exchange_n(launch->mbarriers_taken, 1u, __ATOMIC_RELAXED)) return;
    MbarrierState* to = launch->mbarriers;
    for (uint32_t rank = 0; rank < cluster->size; ++rank) {
        const Worker* w = cluster->block[rank];
        for (uint32_t i = 0; i < w->mbarriers; ++i) {
            const Mbarrier& b = w->mbarrier[i];
            if (b.live) *to++ = MbarrierState{b.offset, rank, b.phase, b.expected, b.pending, b.bytes};
        }
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
            break_rule(w, kMbarrierMisuse, kBytesLeft, b.expect_pc, b.offset, static_cast<uint64_t>(b.bytes));
    }
}
