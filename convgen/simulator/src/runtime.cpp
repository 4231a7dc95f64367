// The CUDA execution model on a CPU: one translation unit, linked into every library of kernels.
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "atomics.h"
#include "cluster_hooks.h"
#include "hooks.h"
#include "hopper_hooks.h"
#include "texture.h"
#include "watchdog.h"

constexpr uint32_t kOldTime = 1u << 31;

static uint64_t next_cluster;
static bool stopped;

static void* map_memory(uint64_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

static void unmap_clocks(Worker* w) {
    if (w->clocks) munmap(w->clocks, w->mapped_ranks * (kClockBytes + kReaderBytes));
    w->clocks = nullptr;
    w->mapped_ranks = 0;
}

// Room for the clocks and readers of a cluster of so many blocks; false if there is none. What lies there is of earlier
// times, whatever cluster it was of.
static bool map_clocks(Worker* w, uint32_t ranks) {
    if (w->mapped_ranks < ranks) {
        unmap_clocks(w);
        w->clocks = static_cast<Clock*>(map_memory(ranks * (kClockBytes + kReaderBytes)));
        if (!w->clocks) return false;
        w->readers = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(w->clocks) + ranks * kClockBytes);
        w->mapped_ranks = ranks;
    }
    return true;
}

// The worker of a region, which may have served any launch before.
static Worker* worker_in(void* region) {
    Worker* w = static_cast<Worker*>(region);
    if (w->newest > kOldTime) {  // times begin anew, with all zero
        unmap_clocks(w);
        madvise(region, kRegionBytes, MADV_DONTNEED);
    }
    char* begin = static_cast<char*>(region);
    w->shared = reinterpret_cast<unsigned char*>(begin + kSharedOffset);
    w->load = reinterpret_cast<TensorCopy*>(begin + kCopiesOffset);
    w->store = w->load + kMaxCopies;
    w->wgmma = reinterpret_cast<Wgmma*>(begin + kWgmmaOffset);
    return w;
}

// A cluster of workers in so many regions; false if there is no memory for their clocks.
static bool make_cluster(Cluster* cluster, void** regions, uint32_t size) {
    for (uint32_t rank = 0; rank < size; ++rank) {
        Worker* w = worker_in(regions[rank]);
        cluster->block[rank] = w;
        cluster->clock = cluster->clock > w->newest ? cluster->clock : w->newest;
        w->cluster = cluster;
        w->rank = rank;
        w->ranks = size;
        w->actor_bits = kActorBits | (size > 1 ? 0xffff0000u : 0);
        if (!map_clocks(w, size)) return false;
    }
    cluster->size = size;
    return true;
}

static void begin_launch(Worker* w, const Launch* launch) {
    w->launch = launch;
    w->threads = launch->block.x * launch->block.y * launch->block.z;
    w->warps = (w->threads + kWarp - 1) / kWarp;
    w->expired = w->allocating = false;
    w->ticks = 0;
    w->ticked_block = 0;
    w->has_waited = false;
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

static void* run_clusters(void* argument) {
    Cluster* cluster = static_cast<Cluster*>(argument);
    const Launch* launch = cluster->block[0]->launch;
    __atomic_store_n(&cluster->os_thread, static_cast<int>(syscall(SYS_gettid)), __ATOMIC_RELAXED);
    const SignalStack signal_stack;
    const Timer timer(launch->timeout_ms);
    while (!__atomic_load_n(&stopped, __ATOMIC_RELAXED)) {
        const uint64_t i = __atomic_fetch_add(&next_cluster, 1, __ATOMIC_RELAXED);
        if (i >= launch->cluster_count) break;
        run_cluster(cluster, launch->clusters ? launch->clusters[i] : i);
        if (cluster->abandoned) __atomic_store_n(&stopped, true, __ATOMIC_RELAXED);
    }
    return nullptr;
}

static void end_launch(Worker* w, Launch* launch) {
    w->newest = w->cluster->clock;
    launch->waited |= w->has_waited;
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

// Run the launch; 0 if it was run (whatever its faults), 1 if the machine gave no memory.
EXPORT int convgen_sim_launch(Launch* launch) {
    const uint32_t workers = launch->workers;
    const uint32_t size = launch->cluster.x * launch->cluster.y * launch->cluster.z;
    next_cluster = 0;
    stopped = cancelled = false;
    memset(pool, 0, sizeof(pool));
    for (uint32_t i = 0; i < workers; ++i) {
        if (!make_cluster(&pool[i], launch->regions + i * size, size)) return 1;
        for (uint32_t rank = 0; rank < size; ++rank) begin_launch(pool[i].block[rank], launch);
    }
    pthread_t threads[kMaxWorkers];
    catch_crashes();
    catch_ticks();
    uint32_t started = 1;  // the caller is the first
    for (; started < workers; ++started)
        if (pthread_create(&threads[started], nullptr, run_clusters, &pool[started])) break;
    if (workers) run_clusters(&pool[0]);
    for (uint32_t i = 1; i < started; ++i) pthread_join(threads[i], nullptr);
    stop_catching_ticks();
    stop_catching_crashes();
    for (uint32_t i = 0; i < workers; ++i)
        for (uint32_t rank = 0; rank < size; ++rank) end_launch(pool[i].block[rank], launch);
    return 0;
}

// Have the launch under way end soon, wherever its kernels are; what it computes is then good for nothing. To be called
// by another thread, and again until the launch has ended: a tick may come at a bad moment.
EXPORT void convgen_sim_cancel() {
    __atomic_store_n(&stopped, true, __ATOMIC_RELAXED);
    __atomic_store_n(&cancelled, true, __ATOMIC_RELAXED);
    for (const Cluster& cluster : pool)
        if (const int id = __atomic_load_n(&cluster.os_thread, __ATOMIC_RELAXED)) syscall(SYS_tgkill, getpid(), id, kTickSignal);
}
