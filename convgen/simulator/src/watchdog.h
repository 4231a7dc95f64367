// A block that never ends is stopped, and its launch with it. A timer on each worker's own CPU time ticks, so that a
// busy or halted machine makes no block late. A launch that nobody waits for any more is sent ticks that count at once.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "crash.h"

constexpr int kTickSignal = SIGURG;  // ignored by default: a late tick does no harm
constexpr uint64_t kTicks = 8;       // in the time a block may take

static struct sigaction former_tick_action;
static bool cancelled;

static void on_tick(int, siginfo_t*, void* context) {
    const Interrupted at = interrupted(context);
    Worker* w = at.worker;
    if (!w) return;
    const bool unwanted = __atomic_load_n(&cancelled, __ATOMIC_RELAXED);
    if (w->ticked_block != w->totals.blocks) {
        w->ticked_block = w->totals.blocks;
        w->ticks = 0;
    }
    if (++w->ticks <= kTicks && !unwanted) return;
    __atomic_store_n(&w->expired, true, __ATOMIC_RELAXED);  // the next hook or barrier gives up: it knows the line
    if (w->ticks == kTicks + 1 && !unwanted) return;
    // A loop without either. Never out of libc, which may hold a lock: the next tick will do.
    const bool ours = at.pc <= static_cast<uint64_t>(_end - __ehdr_start);
    if (ours && !__atomic_load_n(&w->allocating, __ATOMIC_ACQUIRE)) give_up(w, at.pc);
}

static void catch_ticks() {
    struct sigaction action = {};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    sigaction(kTickSignal, &action, &former_tick_action);
}

static void stop_catching_ticks() { sigaction(kTickSignal, &former_tick_action, nullptr); }

// The calling OS thread's timer. By system calls: an older libc has the functions in a library of their own.
struct Timer {
    int id = 0;
    bool made = false;
    explicit Timer(uint64_t timeout_ms) {
        if (!timeout_ms) return;
        struct sigevent event = {};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = kTickSignal;
        event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
        made = syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, &event, &id) == 0;
        if (!made) return;
        const uint64_t tick_ns = timeout_ms * (1000000 / kTicks);
        const struct timespec tick = {static_cast<time_t>(tick_ns / 1000000000), static_cast<long>(tick_ns % 1000000000)};
        const struct itimerspec every = {tick, tick};
        syscall(SYS_timer_settime, id, 0, &every, nullptr);
    }
    ~Timer() {
        if (made) syscall(SYS_timer_delete, id);
    }
};
