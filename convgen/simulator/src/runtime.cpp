// The CUDA execution model on a CPU: one translation unit, linked into every library of kernels.
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "atomics.h"
#include "hooks.h"
#include "hopper_hooks.h"
#include "texture.h"
#include "watchdog.h"

static uint64_t next_block;
static bool stopped;

static Worker* make_worker() {
    void* reserved = mmap(nullptr, 2 * kRegionBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return nullptr;
    const uint64_t begin = reinterpret_cast<uint64_t>(reserved);
    const uint64_t aligned = (begin + kRegionBytes - 1) & ~(kRegionBytes - 1);
    if (aligned > begin) munmap(reserved, aligned - begin);
    munmap(reinterpret_cast<void*>(aligned + kRegionBytes), begin + kRegionBytes - aligned);
    Worker* w = reinterpret_cast<Worker*>(aligned);
    w->shared = reinterpret_cast<unsigned char*>(aligned + kSharedOffset);
    w->load = reinterpret_cast<TensorCopy*>(aligned + kCopiesOffset);
    w->store = w->load + kMaxCopies;
    w->wgmma = reinterpret_cast<Wgmma*>(aligned + kWgmmaOffset);
    return w;
}

static void begin_launch(Worker* w, const Launch* launch) {
    w->launch = launch;
    w->threads = launch->block.x * launch->block.y * launch->block.z;
    w->warps = (w->threads + kWarp - 1) / kWarp;
    w->abandoned = w->expired = w->allocating = false;
    w->ticks = 0;
    w->ticked_block = 0;
    w->fault_count = 0;
    w->totals = Totals{};
    for (uint32_t i = 0; i < w->threads; ++i) {
        Thread& t = w->thread[i];
        t.linear = i;
        t.index = Index3{i % launch->block.x, i / launch->block.x % launch->block.y,
                         i / launch->block.x / launch->block.y};
    }
    w->sites = launch->count ? static_cast<SiteTable*>(calloc(1, sizeof(SiteTable))) : nullptr;
}

static void* run_worker(void* argument) {
    Worker* w = static_cast<Worker*>(argument);
    const Launch* launch = w->launch;
    const SignalStack signal_stack;
    const Timer timer(launch->timeout_ms);
    while (!__atomic_load_n(&stopped, __ATOMIC_RELAXED)) {
        const uint64_t i = __atomic_fetch_add(&next_block, 1, __ATOMIC_RELAXED);
        if (i >= launch->block_count) break;
        run_block(w, launch->blocks ? launch->blocks[i] : i);
        if (w->abandoned) __atomic_store_n(&stopped, true, __ATOMIC_RELAXED);
    }
    return nullptr;
}

static void end_launch(Worker* w, Launch* launch) {
    for (uint32_t i = 0; i < w->fault_count && launch->fault_count < launch->fault_capacity; ++i)
        launch->faults[launch->fault_count++] = w->fault[i];
    launch->totals.flops += w->totals.flops;
    launch->totals.barriers += w->totals.barriers;
    launch->totals.blocks += w->totals.blocks;
    for (uint32_t space = 0; space < kSpaces; ++space) {
        launch->totals.read_bytes[space] += w->totals.read_bytes[space];
        launch->totals.written_bytes[space] += w->totals.written_bytes[space];
        launch->totals.accesses[space] += w->totals.accesses[space];
    }
    for (uint32_t i = 0; i < w->threads; ++i) {
        free(w->thread[i].copies);
        w->thread[i].copies = nullptr;
        w->thread[i].copies_capacity = 0;
    }
    if (!w->sites) return;
    for (uint32_t i = 0; i < w->sites->count && launch->site_count < launch->site_capacity; ++i)
        launch->sites[launch->site_count++] = w->sites->site[i];
    free(w->sites);
    w->sites = nullptr;
    for (uint32_t i = 0; i < w->threads; ++i) {
        free(w->thread[i].trace);
        w->thread[i].trace = nullptr;
        w->thread[i].trace_length = w->thread[i].trace_capacity = 0;
    }
}

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT uint64_t convgen_sim_launch_bytes() { return sizeof(Launch); }

// Run the launch; 0 if it was run (whatever its faults), 1 if the machine gave no memory or thread.
EXPORT int convgen_sim_launch(Launch* launch) {
    next_block = 0;
    stopped = false;
    uint32_t workers = min_u32(launch->workers, kMaxWorkers);
    if (workers > launch->block_count) workers = static_cast<uint32_t>(launch->block_count);
    for (uint32_t i = 0; i < workers; ++i) {
        if (!pool[i]) pool[i] = make_worker();
        if (!pool[i]) return 1;
        begin_launch(pool[i], launch);
    }
    pthread_t threads[kMaxWorkers];
    catch_crashes();
    catch_ticks();
    uint32_t started = 1;  // the caller is the first
    for (; started < workers; ++started)
        if (pthread_create(&threads[started], nullptr, run_worker, pool[started])) break;
    if (workers) run_worker(pool[0]);
    for (uint32_t i = 1; i < started; ++i) pthread_join(threads[i], nullptr);
    stop_catching_ticks();
    stop_catching_crashes();
    for (uint32_t i = 0; i < workers; ++i) end_launch(pool[i], launch);
    return 0;
}

EXPORT void convgen_sim_close() {
    for (Worker*& w : pool) {
        if (w) munmap(w, kRegionBytes);
        w = nullptr;
    }
}
