// The functions that the compiler's instrumentation (-fsanitize=thread) calls at every memory access.
#pragma once

#include <string.h>

#include "async_copy.h"
#include "scheduler.h"

static void count(Worker* w, Thread* t, const Touch& touch, Space space) {
    ++w->totals.accesses[space];
    (touch.write ? w->totals.written_bytes : w->totals.read_bytes)[space] += touch.bytes;
    if (w->sites && trace(w, t, touch.address, touch.bytes, space, touch.write, touch.pc)) wait(w, kTraceFull);
}

static void see_shared(Worker* w, Thread* t, const Touch& touch) {
    check_shared(w, w, t, touch);
    count(w, t, touch, kShared);
}

// The shared memory of another block of the cluster.
static void see_remote(Worker* w, Worker* owner, Thread* t, const Touch& touch) {
    if (!reach(w, t, owner, touch.pc)) return;
    check_shared(w, owner, t, touch);
    if (touch.write) note_remote_write(t);
    count(w, t, touch, kShared);
}

static __attribute__((noinline)) void see_memory(Worker* w, const Touch& touch) {
    const Launch* launch = w->launch;
    Thread* t = w->current;
    if (__atomic_load_n(&w->expired, __ATOMIC_RELAXED)) give_up(w, touch.pc);
    if (t->announced_left && touch.address >= t->announced_begin && touch.address < t->announced_end) {
        t->announced_left -= touch.bytes < t->announced_left ? touch.bytes : t->announced_left;
        return;
    }
    const uint64_t slot = (touch.address - launch->arena_base) >> kArenaSlotBits;
    if (slot < launch->buffer_count) {
        if (launch->check) check_global(w, t, touch, static_cast<uint32_t>(slot));
        count(w, t, touch, kGlobal);
    } else if (touch.address - reinterpret_cast<uint64_t>(w) < kRegionBytes) {
        see_shared(w, t, touch);
    } else if (Worker* owner = w->ranks > 1 ? block_at(w, touch.address) : nullptr) {
        see_remote(w, owner, t, touch);
    } else if (touch.address - reinterpret_cast<uint64_t>(__ehdr_start) < static_cast<uint64_t>(_end - __ehdr_start)) {
        if (check_constant(w, touch)) count(w, t, touch, kConstant);
    } else {
        record_access(w, kOutOfBounds, touch, kGlobal, kNoObject, 0);
        abandon(w);
    }
}

static inline bool is_local(const Worker* w, uint64_t address) {
    return address - (reinterpret_cast<uint64_t>(w) + kLocalsOffset) < kRegionBytes - kLocalsOffset;
}

static inline __attribute__((always_inline)) void see(const volatile void* address, uint32_t bytes, bool write, void* pc) {
    Worker* w = this_worker();
    const uint64_t a = reinterpret_cast<uint64_t>(address);
    if (!is_local(w, a))
        see_memory(w, Touch{a, image_offset(pc), bytes, write, false});
    else if (w->has_wgmma)
        see_registers(w, a, write, image_offset(pc));
}

#define CALLER __builtin_return_address(0)
#define HOOK(bytes)                                                                        \
    void __tsan_read##bytes(void* a) { see(a, bytes, false, CALLER); }                     \
    void __tsan_write##bytes(void* a) { see(a, bytes, true, CALLER); }                     \
    void __tsan_unaligned_read##bytes(void* a) { see(a, bytes, false, CALLER); }           \
    void __tsan_unaligned_write##bytes(void* a) { see(a, bytes, true, CALLER); }           \
    void __tsan_volatile_read##bytes(void* a) { see(a, bytes, false, CALLER); }            \
    void __tsan_volatile_write##bytes(void* a) { see(a, bytes, true, CALLER); }            \
    void __tsan_read_write##bytes(void* a) { see(a, bytes, false, CALLER), see(a, bytes, true, CALLER); }

extern "C" {
HOOK(1)
HOOK(2)
HOOK(4)
HOOK(8)
HOOK(16)

void __tsan_read_range(void* a, size_t bytes) { see(a, static_cast<uint32_t>(bytes), false, CALLER); }
void __tsan_write_range(void* a, size_t bytes) { see(a, static_cast<uint32_t>(bytes), true, CALLER); }

void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
    see(from, static_cast<uint32_t>(bytes), false, CALLER);
    see(to, static_cast<uint32_t>(bytes), true, CALLER);
    return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
    see(from, static_cast<uint32_t>(bytes), false, CALLER);
    see(to, static_cast<uint32_t>(bytes), true, CALLER);
    return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
    see(to, static_cast<uint32_t>(bytes), true, CALLER);
    return memset(to, value, bytes);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void convgen_sim_count_flops(int flops) { this_worker()->totals.flops += static_cast<uint64_t>(flops); }

// One vector access, seen whole; the parts that the compiler reports after it are passed over.
void convgen_sim_access(const void* address, int bytes, int is_write) {
    Worker* w = this_worker();
    Thread* t = w->current;
    t->announced_left = 0;
    see(address, static_cast<uint32_t>(bytes), is_write, CALLER);
    t->announced_begin = reinterpret_cast<uint64_t>(address);
    t->announced_end = t->announced_begin + static_cast<uint64_t>(bytes);
    t->announced_left = static_cast<uint32_t>(bytes);
}

void convgen_sim_atomic(const void* address, int bytes) {
    Worker* w = this_worker();
    if (!w->launch->check) return;
    const Touch touch{reinterpret_cast<uint64_t>(address), image_offset(CALLER), static_cast<uint32_t>(bytes), true, true};
    if (!is_local(w, touch.address)) see_memory(w, touch);
}

void convgen_sim_mma(int type, void* d, const unsigned* a, const unsigned* b) {
    const MmaOperands operands{d, a, b};
    meet_warp(kMma, 0xffffffffu, reinterpret_cast<uint64_t>(&operands), type, kWarp, 0, image_offset(CALLER));
}

void convgen_sim_ldmatrix(unsigned* registers, const void* row, int matrices, int transposed) {
    Worker* w = this_worker();
    Thread* t = w->current;
    const uint64_t pc = image_offset(CALLER);
    if (w->launch->check && static_cast<int>(t->linear % kWarp / 8) < matrices)
        see_shared(w, t, Touch{reinterpret_cast<uint64_t>(row), pc, 16, false, false});
    const MatrixRow given{registers, row, matrices, transposed};
    meet_warp(kLdmatrix, 0xffffffffu, reinterpret_cast<uint64_t>(&given), 2 * matrices + transposed, kWarp, 0, pc);
}

void convgen_sim_stmatrix(void* row, const unsigned* registers, int matrices, int transposed) {
    Worker* w = this_worker();
    Thread* t = w->current;
    const uint64_t pc = image_offset(CALLER);
    if (w->launch->check && static_cast<int>(t->linear % kWarp / 8) < matrices)
        see_shared(w, t, Touch{reinterpret_cast<uint64_t>(row), pc, 16, true, false});
    const MatrixRow given{const_cast<unsigned*>(registers), row, matrices, transposed};
    meet_warp(kStmatrix, 0xffffffffu, reinterpret_cast<uint64_t>(&given), 2 * matrices + transposed, kWarp, 0, pc);
}

void convgen_sim_cp_async(void* shared, const void* global, int bytes, int valid) {
    Worker* w = this_worker();
    Thread* t = w->current;
    const Launch* launch = w->launch;
    const uint32_t size = static_cast<uint32_t>(bytes);
    const uint32_t copied = min_u32(static_cast<uint32_t>(valid > 0 ? valid : 0), size);
    const AsyncCopy copy{shared, global, size, copied, t->groups_committed};
    if (launch->check) {
        const uint64_t from = reinterpret_cast<uint64_t>(global), pc = image_offset(CALLER);
        if (copied < size && copied && from % size)
            record_access(w, kMisaligned, Touch{from, pc, size, false, false}, kGlobal, kNoObject, 0);
        if (copied) see_memory(w, Touch{from, pc, copied, false, false});
        see_shared(w, t, Touch{reinterpret_cast<uint64_t>(shared), pc, size, true, false, true});
    }
    if (!launch->late_copies) move_copy(copy);
    if (launch->late_copies || launch->check) *add_copy(w, t) = copy;
}

void convgen_sim_cp_async_commit() { ++this_worker()->current->groups_committed; }

void convgen_sim_cp_async_wait(int groups) {
    Worker* w = this_worker();
    end_copies(w, w->current, static_cast<uint32_t>(groups));
}
}
#undef HOOK
