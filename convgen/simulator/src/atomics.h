// Clang instruments atomic operations even where it is told not to: these hooks just do them. What the simulator
// needs to know of an atomic it hears from convgen_sim_atomic.
#pragma once

#include <stdint.h>

#define ATOMIC_HOOKS(bits)                                                                                     \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* a, int) {                         \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                                           \
    }                                                                                                          \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t* a, uint##bits##_t v, int) {                      \
        __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                              \
    }                                                                                                          \
    uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t* a, uint##bits##_t v, int) {         \
        return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                                    \
    }                                                                                                          \
    uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t* a, uint##bits##_t v, int) {        \
        return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                                     \
    }                                                                                                          \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t* a, uint##bits##_t c,    \
                                                              uint##bits##_t v, int, int) {                    \
        __atomic_compare_exchange_n(a, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                      \
        return c;                                                                                              \
    }                                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* a, uint##bits##_t* c,           \
                                                      uint##bits##_t v, int, int) {                            \
        return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
    }

extern "C" {
ATOMIC_HOOKS(8)
ATOMIC_HOOKS(16)
ATOMIC_HOOKS(32)
ATOMIC_HOOKS(64)

void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}
#undef ATOMIC_HOOKS
