// What the twins of templates/device's wrappers for sm_90a call.
#pragma once

#include "hooks.h"
#include "tensor_copy.h"

// The box of a tensor map at these coordinates, at an address of shared memory.
static TensorCopy tensor_copy(Worker* w, const void* map, const int* at, int rank, const void* shared, uint64_t pc,
                              const unsigned short* shift = nullptr) {
    TensorMapBits bits;
    memcpy(&bits, map, sizeof(bits));
    TensorCopy copy = {};
    copy.shared = offset_in_shared(w, shared);
    copy.pc = pc;
    if (bits.mark != kTensorMapMark || bits.rank != rank) {
        break_rule(w, kIllegalCopy, bits.mark != kTensorMapMark ? kNoTensorMap : kWrongRank, pc, copy.shared,
                   static_cast<uint64_t>(rank), bits.rank);
        abandon(w);
    }
    if (bits.im2col != (shift != nullptr)) {
        break_rule(w, kIllegalCopy, kWrongMode, pc, copy.shared);
        abandon(w);
    }
    if (copy.shared % 128) break_rule(w, kIllegalCopy, kSharedAlignment, pc, copy.shared, 0, 128);
    copy.base = bits.base;
    copy.element_bytes = bits.element_bytes;
    copy.swizzle_mask = swizzle_mask(bits.swizzle_bytes);
    for (int d = 0; d < static_cast<int>(kMaxRank); ++d) {
        const bool used = d < rank;
        copy.extent[d] = used ? bits.extent[d] : 1;
        copy.stride[d] = used && d ? bits.stride[d - 1] : 0;
        copy.box[d] = used ? bits.box[d] : 1;
        copy.step[d] = used ? bits.step[d] : 1;
        copy.at[d] = used ? at[d] : 0;
    }
    const int64_t begin = copy.at[0] * copy.element_bytes, piece = kPiece;
    if (begin % piece)
        break_rule(w, kIllegalCopy, kRowStart, pc, copy.shared, static_cast<uint64_t>((begin % piece + piece) % piece), kPiece);
    if (!shift) return copy;
    copy.im2col_rank = bits.rank;
    for (int d = 0; d < rank - 2; ++d) {
        copy.lower[d] = bits.lower[d];
        copy.upper[d] = bits.upper[d];
        copy.shift[d] = shift[d];
    }
    for (uint32_t d = 2; d < kMaxRank; ++d) copy.box[d] = 1;
    return copy;
}

// `bytes` one after the other.
static TensorCopy bulk_copy(Worker* w, uint64_t global, const void* shared, uint32_t bytes, uint64_t pc) {
    TensorCopy copy = {};
    copy.shared = offset_in_shared(w, shared);
    copy.pc = pc;
    if (copy.shared % 16) break_rule(w, kIllegalCopy, kSharedAlignment, pc, copy.shared, 0, 16);
    if (global % 16) break_rule(w, kIllegalCopy, kGlobalAlignment, pc, 0, global, 16);
    if (bytes % 16 || !bytes) break_rule(w, kIllegalCopy, kCopySize, pc, 0, bytes, 16);
    copy.base = global;
    copy.element_bytes = 1;
    for (uint32_t d = 0; d < kMaxRank; ++d) copy.extent[d] = copy.box[d] = copy.step[d] = 1;
    copy.extent[0] = copy.box[0] = bytes / 16 * 16;
    return copy;
}

// See what the copy touches in global memory.
static void see_global(Worker* w, const TensorCopy& copy, bool is_written) {
    if (!lies_in_shared(w, copy)) return;
    for_each_row(copy, [&](uint64_t, uint64_t global, uint32_t first, uint32_t end) {
        if (first < end) see_memory(w, Touch{global + first, copy.pc, end - first, is_written, false, false, true});
    });
}

// See what it touches in the owner's shared memory, as an agent of the owner's does it for the current thread.
static void see_shared_side(Worker* w, Worker* owner, const TensorCopy& copy, uint32_t agent, bool is_written) {
    const Clock* clock = w->clock_of(w->current->linear);
    const uint64_t shared_memory = reinterpret_cast<uint64_t>(owner->shared);
    w->totals.accesses[kShared] += 1;
    (is_written ? w->totals.written_bytes : w->totals.read_bytes)[kShared] += copy.bytes();
    if (!lies_in_shared(w, copy)) {
        shared_offset(w, owner, Touch{shared_memory + copy.shared, copy.pc, copy.bytes(), is_written, false});
        return;
    }
    for_each_row(copy, [&](uint64_t shared, uint64_t, uint32_t, uint32_t) {
        for (uint32_t at = 0; at < copy.row_bytes(); at += kPiece) {
            const uint64_t address = shared_memory + swizzled(shared + at, copy.swizzle_mask);
            check_async(w, owner, w->current->linear, clock, agent, copy.time, Touch{address, copy.pc, kPiece, is_written, false});
        }
    });
}

// Into the owner's memory, onto its mbarrier at that offset.
static void load_into(Worker* w, Worker* owner, TensorCopy copy, uint64_t mbarrier) {
    Thread* t = w->current;
    if (!is_there(w, t, owner, copy.pc)) return;  // that it stays so, end_copies_of_block sees
    const Mbarrier* b = find_mbarrier(w, owner, t, mbarrier, copy.pc);
    if (!b) return;
    copy.mbarrier = static_cast<uint32_t>(b - owner->mbarrier);
    copy.phase = b->phase;
    if (w->launch->check) {
        if (!b->fenced && w->clock_of(t->linear)[owner->rank].fenced[b->initialiser] < b->init_time)
            break_rule_at(w, owner, kProxy, kInitUnfenced, copy.pc, b->offset);
        see_shared_side(w, owner, copy, kMbarrierAgents + copy.mbarrier, true);
    }
    add_load(owner, copy);
}

// To the same place in each block whose rank's bit is set.
static void issue_load(Worker* w, TensorCopy copy, const void* mbarrier, uint32_t ranks) {
    if (!ranks || ranks >> w->ranks) break_rule(w, kIllegalCopy, kMulticastMask, copy.pc, 0, ranks, w->ranks);
    copy.time = ++w->cluster->clock;
    if (w->launch->check) see_global(w, copy, false);
    for (uint32_t rank = 0; rank < w->ranks; ++rank)
        if (ranks >> rank & 1) load_into(w, w->cluster->block[rank], copy, offset_in_shared(w, mbarrier));
}

static uint32_t only_here(const Worker* w) { return 1u << w->rank; }

// A store whose box begins at a negative coordinate is an illegal instruction, one that lies outside altogether is not (measured).
static void see_begin(Worker* w, const TensorCopy& copy) {
    int64_t before = 0;
    bool reaches = true;
    for (uint32_t d = 0; d < kMaxRank; ++d) {
        before = copy.at[d] < before ? copy.at[d] : before;
        reaches = reaches && copy.at[d] + static_cast<int64_t>(copy.box[d] * copy.step[d]) > 0 &&
                  copy.at[d] < static_cast<int64_t>(copy.extent[d]);
    }
    if (before < 0 && reaches)
        break_rule(w, kIllegalCopy, kNegativeStore, copy.pc, copy.shared, static_cast<uint64_t>(-before));
}

static void issue_store(Worker* w, TensorCopy copy) {
    Thread* t = w->current;
    copy.thread = t->linear;
    copy.group = t->bulk_groups;
    copy.time = ++w->cluster->clock;
    see_begin(w, copy);
    use_clocks(w);
    if (w->launch->check) {
        see_global(w, copy, true);
        see_shared_side(w, w, copy, kStoreAgents + t->linear / kWarp, false);
    }
    if (w->stores == kMaxCopies) abandon(w);
    w->store[w->stores++] = copy;
}

extern "C" {
void convgen_sim_tensor_load(void* shared, const void* map, const int* at, int rank, void* mbarrier) {
    Worker* w = this_worker();
    issue_load(w, tensor_copy(w, map, at, rank, shared, image_offset(CALLER)), mbarrier, only_here(w));
}

void convgen_sim_tensor_load_im2col(void* shared, const void* map, const int* at, const unsigned short* shift, int rank,
                                    void* mbarrier) {
    Worker* w = this_worker();
    issue_load(w, tensor_copy(w, map, at, rank, shared, image_offset(CALLER), shift), mbarrier, only_here(w));
}

void convgen_sim_tensor_load_multicast(void* shared, const void* map, const int* at, int rank, void* mbarrier, unsigned short ranks) {
    Worker* w = this_worker();
    issue_load(w, tensor_copy(w, map, at, rank, shared, image_offset(CALLER)), mbarrier, ranks);
}

void convgen_sim_tensor_load_im2col_multicast(void* shared, const void* map, const int* at, const unsigned short* shift, int rank,
                                              void* mbarrier, unsigned short ranks) {
    Worker* w = this_worker();
    issue_load(w, tensor_copy(w, map, at, rank, shared, image_offset(CALLER), shift), mbarrier, ranks);
}

void convgen_sim_tensor_store(const void* map, const int* at, int rank, const void* shared) {
    Worker* w = this_worker();
    issue_store(w, tensor_copy(w, map, at, rank, shared, image_offset(CALLER)));
}

void convgen_sim_bulk_load(void* shared, const void* global, unsigned bytes, void* mbarrier) {
    Worker* w = this_worker();
    issue_load(w, bulk_copy(w, reinterpret_cast<uint64_t>(global), shared, bytes, image_offset(CALLER)), mbarrier, only_here(w));
}

void convgen_sim_bulk_store(void* global, const void* shared, unsigned bytes) {
    Worker* w = this_worker();
    issue_store(w, bulk_copy(w, reinterpret_cast<uint64_t>(global), shared, bytes, image_offset(CALLER)));
}

void convgen_sim_bulk_commit() { ++this_worker()->current->bulk_groups; }

void convgen_sim_bulk_wait(int groups) {
    Worker* w = this_worker();
    end_stores(w, w->current, static_cast<uint32_t>(groups));
}

void convgen_sim_wgmma(void* d, const unsigned* a, uint64_t a_tile, uint64_t b_tile, int type, int n, int accumulate,
                       int a_transposed, int b_transposed) {
    const WgmmaOperands operands{d, a, a_tile, b_tile, type, n, accumulate, a_transposed, b_transposed};
    meet_warpgroup(kWgmma, reinterpret_cast<uint64_t>(&operands), 0, image_offset(CALLER));
}

void convgen_sim_grid_dependency_wait() {
    Worker* w = this_worker();
    w->current->has_waited = w->has_waited = true;
}

void convgen_sim_wgmma_fence() { this_worker()->current->wgmma_fenced = true; }

void convgen_sim_wgmma_commit() {
    Worker* w = this_worker();
    const Thread* t = w->current;
    if (t->linear % kWarpgroup == kWarpgroup - 1) ++w->wgmma_groups[t->linear / kWarpgroup];
}

void convgen_sim_wgmma_wait(int groups) { meet_warpgroup(kWgmmaWait, 0, groups, image_offset(CALLER)); }

void convgen_sim_bar_sync(unsigned number, unsigned count) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->pc = image_offset(CALLER);
    t->line = 0;
    t->value = number;
    if (!arrive_at_barrier(w, t, number, count, t->pc)) wait(w, kAtNamedBarrier);
}

void convgen_sim_bar_arrive(unsigned number, unsigned count) {
    Worker* w = this_worker();
    arrive_at_barrier(w, w->current, number, count, image_offset(CALLER));
}

void convgen_sim_setmaxnreg(int registers) { meet_warpgroup(kSetRegisters, 0, registers, image_offset(CALLER)); }

void convgen_sim_mbarrier_init(void* mbarrier, unsigned count) {
    Worker* w = this_worker();
    init_mbarrier(w, w->current, mbarrier, count, image_offset(CALLER));
}

void convgen_sim_mbarrier_inval(void* mbarrier) {
    Worker* w = this_worker();
    const uint64_t offset = offset_in_shared(w, mbarrier), pc = image_offset(CALLER);
    Mbarrier* b = find_mbarrier(w, w, w->current, offset, pc);
    if (!b) return;
    for (uint32_t i = 0; i < w->threads; ++i)
        if (w->state[i] == kAtMbarrier && w->thread[i].value == static_cast<uint64_t>(b - w->mbarrier))
            break_rule(w, kMbarrierMisuse, kInitInUse, pc, offset);
    b->live = false;
    mark_mbarrier(w, offset, stamp_of(w->current));
}

void convgen_sim_mbarrier_arrive(void* mbarrier, unsigned count, unsigned transactions) {
    Worker* w = this_worker();
    const uint64_t pc = image_offset(CALLER);
    Mbarrier* b = find_mbarrier(w, w, w->current, offset_in_shared(w, mbarrier), pc);
    if (!b) return;
    if (transactions) expect_transactions(w, b, transactions, pc);
    if (count) arrive_at_mbarrier(w, w->current, b, count, pc);
}

// Until the phase of this parity has ended.
void convgen_sim_mbarrier_wait(void* mbarrier, unsigned parity) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->pc = image_offset(CALLER);
    Mbarrier* b = find_mbarrier(w, w, t, offset_in_shared(w, mbarrier), t->pc);
    if (!b) return;
    if ((b->phase & 1) == parity) {
        t->value = static_cast<uint64_t>(b - w->mbarrier);
        t->operand = static_cast<int>(parity);
        t->line = 0;
        wait(w, kAtMbarrier);
    }
    acquire(w, t, w->completed(b));
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
    if (Mbarrier* b = find_mbarrier(w, w, w->current, offset_in_shared(w, mbarrier), pc)) arrive_at_mbarrier(w, w->current, b, 1, pc);
}
}
