// Switching between fibers: six registers and the stack pointer, no system call.
#pragma once

#include <stdint.h>

// Saves the caller's context on its stack and its stack pointer in *save; resumes the context at `load`.
extern "C" __attribute__((visibility("hidden"))) void convgen_sim_switch(void** save, void* load);

#if defined(__x86_64__)
constexpr int kSavedWords = 7;  // rbp rbx r12 r13 r14 r15, return address
asm(R"(
    .text
    .globl convgen_sim_switch
    .hidden convgen_sim_switch
    .type convgen_sim_switch, @function
convgen_sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size convgen_sim_switch, . - convgen_sim_switch
)");

static inline uint64_t stack_pointer() {
    uint64_t value;
    asm("movq %%rsp, %0" : "=r"(value));
    return value;
}

// A context that enters `entry` when resumed.
static inline void* make_context(char* top, void (*entry)()) {
    uint64_t* words = reinterpret_cast<uint64_t*>(top) - 1;  // entry starts as if called: 8 bytes off a multiple of 16
    *words = 0;
    *--words = reinterpret_cast<uint64_t>(entry);
    for (int i = 1; i < kSavedWords; ++i) *--words = 0;
    return words;
}
#elif defined(__aarch64__)
constexpr int kSavedWords = 20;  // x19 to x30, d8 to d15
asm(R"(
    .text
    .globl convgen_sim_switch
    .hidden convgen_sim_switch
    .type convgen_sim_switch, %function
convgen_sim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size convgen_sim_switch, . - convgen_sim_switch
)");

static inline uint64_t stack_pointer() {
    uint64_t value;
    asm("mov %0, sp" : "=r"(value));
    return value;
}

static inline void* make_context(char* top, void (*entry)()) {
    uint64_t* words = reinterpret_cast<uint64_t*>(top) - kSavedWords;
    for (int i = 0; i < kSavedWords; ++i) words[i] = 0;
    words[11] = reinterpret_cast<uint64_t>(entry);  // x30
    return words;
}
#else
#error "the simulator switches fibers on x86-64 and aarch64 only"
#endif
