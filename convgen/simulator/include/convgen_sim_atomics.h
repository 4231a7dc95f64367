// Atomics: real ones, because blocks run on several OS threads.
#pragma once

template <typename T, typename Update>
CONVGEN_SIM_UNSEEN T convgen_sim_update(T* address, Update update) {
    T expected, desired;
    __atomic_load(address, &expected, __ATOMIC_RELAXED);
    do {
        desired = update(expected);
    } while (!__atomic_compare_exchange(address, &expected, &desired, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return expected;
}

// Inlined, so that the simulator sees the kernel's own line.
template <typename T, typename Update>
__forceinline__ T convgen_sim_atomic_update(T* address, Update update) {
    convgen_sim_atomic(address, sizeof(T));
    return convgen_sim_update(address, update);
}

#define CONVGEN_SIM_ATOMIC(name, T, result)                                                          \
    __forceinline__ T name(T* address, T value) {                                                    \
        return convgen_sim_atomic_update(address, [value](T old) { return static_cast<T>(result); });             \
    }
#define CONVGEN_SIM_ATOMICS(T)                                                                       \
    CONVGEN_SIM_ATOMIC(atomicAdd, T, old + value)                                                    \
    CONVGEN_SIM_ATOMIC(atomicExch, T, value)
#define CONVGEN_SIM_INTEGER_ATOMICS(T)                                                               \
    CONVGEN_SIM_ATOMICS(T)                                                                           \
    CONVGEN_SIM_ATOMIC(atomicMax, T, old > value ? old : value)                                      \
    CONVGEN_SIM_ATOMIC(atomicMin, T, old < value ? old : value)                                      \
    CONVGEN_SIM_ATOMIC(atomicAnd, T, old & value)                                                    \
    CONVGEN_SIM_ATOMIC(atomicOr, T, old | value)                                                     \
    CONVGEN_SIM_ATOMIC(atomicXor, T, old ^ value)                                                    \
    __forceinline__ T atomicCAS(T* address, T compare, T value) {                                      \
        return convgen_sim_atomic_update(address, [=](T old) { return old == compare ? value : old; }); \
    }
CONVGEN_SIM_INTEGER_ATOMICS(int)
CONVGEN_SIM_INTEGER_ATOMICS(unsigned int)
CONVGEN_SIM_INTEGER_ATOMICS(unsigned long long)
CONVGEN_SIM_ATOMICS(float)
CONVGEN_SIM_ATOMICS(double)
CONVGEN_SIM_ATOMIC(atomicSub, int, old - value)
CONVGEN_SIM_ATOMIC(atomicSub, unsigned int, old - value)
__forceinline__ unsigned int atomicInc(unsigned int* address, unsigned int limit) {
    return convgen_sim_atomic_update(address, [=](unsigned int old) { return old >= limit ? 0u : old + 1; });
}
#undef CONVGEN_SIM_ATOMIC
#undef CONVGEN_SIM_ATOMICS
#undef CONVGEN_SIM_INTEGER_ATOMICS
