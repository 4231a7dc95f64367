// A kernel that crashes (a stray address in fast mode, a division by zero) ends its launch, not the process.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

#include "faults.h"

constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int kCrashSignalCount = 5;
constexpr size_t kSignalStackBytes = 64 << 10;

// What each OS thread of the launch under way runs; one launch at a time runs in a library.
static Cluster pool[kMaxWorkers];
static struct sigaction former_actions[kCrashSignalCount];

// What a signal interrupted: `worker` is null if it was no kernel; `pc` is within the library, as a return address.
struct Interrupted {
    Worker* worker;
    uint64_t pc;
};

static Interrupted interrupted(const void* context) {
    const ucontext_t* where = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
    const uint64_t pc = static_cast<uint64_t>(where->uc_mcontext.gregs[REG_RIP]);
    const uint64_t sp = static_cast<uint64_t>(where->uc_mcontext.gregs[REG_RSP]);
#else
    const uint64_t pc = where->uc_mcontext.pc, sp = where->uc_mcontext.sp;
#endif
    Interrupted found{nullptr, image_offset(reinterpret_cast<void*>(pc)) + 1};
    for (const Cluster& cluster : pool)
        for (Worker* w : cluster.block)
            if (w && sp - reinterpret_cast<uint64_t>(w) < kRegionBytes && w->current) found.worker = w;
    return found;
}

static void on_crash(int signal, siginfo_t* info, void* context) {
    const Interrupted at = interrupted(context);
    if (Worker* w = at.worker) {
        record(w, Fault{.pc = at.pc,
                        .address = reinterpret_cast<uint64_t>(info->si_addr),
                        .kind = kCrash,
                        .object = static_cast<uint32_t>(signal)});
        abandon(w);
    }
    for (int i = 0; i < kCrashSignalCount; ++i)  // not a kernel's: as if we had not been here
        if (kCrashSignals[i] == signal) sigaction(signal, &former_actions[i], nullptr);
}

static void catch_crashes() {
    struct sigaction action = {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < kCrashSignalCount; ++i) sigaction(kCrashSignals[i], &action, &former_actions[i]);
}

static void stop_catching_crashes() {
    for (int i = 0; i < kCrashSignalCount; ++i) sigaction(kCrashSignals[i], &former_actions[i], nullptr);
}

// A stack for the handler, for the calling OS thread: the fiber's own may be what overflowed.
struct SignalStack {
    stack_t former, own;
    SignalStack() {
        own.ss_sp = malloc(kSignalStackBytes);
        own.ss_size = kSignalStackBytes;
        own.ss_flags = 0;
        sigaltstack(&own, &former);
    }
    ~SignalStack() {
        sigaltstack(&former, nullptr);
        free(own.ss_sp);
    }
};
