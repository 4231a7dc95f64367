// Counting what warps ask of memory. The lanes of a warp run one after another, so each writes down its accesses,
// and when all wait the k-th executions of a site by the lanes are put together as one warp instruction.
#pragma once

#include <stdlib.h>

#include "worker.h"

struct Access {
    uint64_t address;
    uint32_t next;  // the lane's next access from the same site
    uint16_t site;
    uint16_t bytes;
};

constexpr uint32_t kMaxSites = 1024;
constexpr uint32_t kSiteSlots = 4096;
constexpr uint32_t kTraceLimit = 1 << 16;
constexpr uint32_t kEnd = 0xffffffffu;

struct SiteTable {
    uint32_t count;
    Site site[kMaxSites];
    uint16_t slot[kSiteSlots];  // index + 1 into site, by hash
    uint32_t head[kMaxSites][kWarp];
};

// The site's index. When there are too many, the last stands for all the rest.
static uint32_t find_site(SiteTable* table, uint64_t pc, Space space, bool write) {
    uint32_t slot = static_cast<uint32_t>((pc * 0x9e3779b97f4a7c15ull >> 40) + space * 7 + write) % kSiteSlots;
    for (; table->slot[slot]; slot = (slot + 1) % kSiteSlots) {
        const Site& site = table->site[table->slot[slot] - 1];
        if (site.pc == pc && site.space == space && site.is_write == write) return table->slot[slot] - 1;
    }
    if (table->count == kMaxSites) return kMaxSites - 1;
    const uint32_t index = table->count++;
    table->site[index] = Site{.pc = pc, .space = space, .is_write = write};
    for (uint32_t& head : table->head[index]) head = kEnd;
    table->slot[slot] = static_cast<uint16_t>(index + 1);
    return index;
}

// True if the trace is full and the thread must wait for its warp.
static bool trace(Worker* w, Thread* t, uint64_t address, uint32_t bytes, Space space, bool write, uint64_t pc) {
    if (t->trace_length == t->trace_capacity) {
        t->trace_capacity = t->trace_capacity ? 2 * t->trace_capacity : 64;
        __atomic_store_n(&w->allocating, true, __ATOMIC_RELEASE);
        t->trace = static_cast<Access*>(realloc(t->trace, t->trace_capacity * sizeof(Access)));
        __atomic_store_n(&w->allocating, false, __ATOMIC_RELEASE);
        if (!t->trace) abort();
    }
    const uint32_t site = find_site(w->sites, pc, space, write);
    t->trace[t->trace_length++] = Access{address, kEnd, static_cast<uint16_t>(site), static_cast<uint16_t>(bytes)};
    return t->trace_length == kTraceLimit;
}

struct LaneAccess {
    uint64_t address;
    uint32_t bytes, lane;
};

static void sort_by_address(LaneAccess* access, int count) {
    for (int i = 1; i < count; ++i) {
        const LaneAccess moved = access[i];
        int j = i;
        for (; j > 0 && access[j - 1].address > moved.address; --j) access[j] = access[j - 1];
        access[j] = moved;
    }
}

// Distinct `unit`-sized pieces of memory that the sorted accesses touch.
static uint64_t distinct_units(const LaneAccess* access, int count, uint64_t unit) {
    uint64_t distinct = 0, seen = 0;  // units below `seen` are counted
    for (int i = 0; i < count; ++i) {
        uint64_t first = access[i].address / unit;
        const uint64_t last = (access[i].address + access[i].bytes - 1) / unit;
        if (first < seen) first = seen;
        if (last + 1 > first) {
            distinct += last + 1 - first;
            seen = last + 1;
        }
    }
    return distinct;
}

// Wavefronts of one phase: the most distinct 4-byte words that fall in one of the 32 banks.
static uint64_t bank_wavefronts(const LaneAccess* access, int count) {
    uint8_t words[32] = {};
    uint64_t most = 0, seen = 0;
    for (int i = 0; i < count; ++i) {
        uint64_t word = access[i].address / 4;
        const uint64_t last = (access[i].address + access[i].bytes - 1) / 4;
        if (word < seen) word = seen;
        for (; word <= last; ++word) {
            const uint64_t in_bank = ++words[word % 32];
            if (in_bank > most) most = in_bank;
        }
        if (last + 1 > seen) seen = last + 1;
    }
    return most;
}

// Accesses of 8 and 16 bytes go in phases of 16 and 8 lanes, each with all 32 banks.
static void count_shared(Site* site, LaneAccess* access, int count, uint32_t bytes) {
    const uint32_t lanes = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    for (uint32_t first = 0; first < kWarp; first += lanes) {
        LaneAccess phase[kWarp];
        int size = 0;
        for (int i = 0; i < count; ++i)
            if (access[i].lane / lanes * lanes == first) phase[size++] = access[i];
        if (!size) continue;
        site->transactions += bank_wavefronts(phase, size);
        site->ideal_transactions += (distinct_units(phase, size, 4) + 31) / 32;
    }
}

static void count_instruction(Site* site, LaneAccess* access, int count) {
    const uint32_t bytes = access[0].bytes;
    sort_by_address(access, count);
    ++site->instructions;
    site->accesses += count;
    for (int i = 0; i < count; ++i) site->bytes += access[i].bytes;
    if (site->space == kGlobal) {
        site->transactions += distinct_units(access, count, 32);
        site->ideal_transactions += (distinct_units(access, count, 1) + 31) / 32;
    } else if (site->space == kShared) {
        count_shared(site, access, count, bytes);
    } else {
        site->transactions += distinct_units(access, count, bytes);
        site->ideal_transactions += 1;
    }
}

// All lanes of the warp whose first thread is `base` wait or are done: count what they did since the last time.
static void flush_traces(Worker* w, uint32_t base) {
    SiteTable* table = w->sites;
    const uint32_t lanes = w->threads - base < kWarp ? w->threads - base : kWarp;
    for (uint32_t lane = 0; lane < lanes; ++lane) {
        Thread* t = &w->thread[base + lane];
        for (uint32_t i = t->trace_length; i-- > 0;) {
            uint32_t* head = &table->head[t->trace[i].site][lane];
            t->trace[i].next = *head;
            *head = i;
        }
        t->trace_length = 0;
    }
    for (uint32_t index = 0; index < table->count; ++index) {
        uint32_t* head = table->head[index];
        for (;;) {
            LaneAccess access[kWarp];
            int count = 0;
            for (uint32_t lane = 0; lane < lanes; ++lane) {
                if (head[lane] == kEnd) continue;
                const Access& a = w->thread[base + lane].trace[head[lane]];
                access[count++] = LaneAccess{a.address, a.bytes, lane};
                head[lane] = a.next;
            }
            if (!count) break;
            count_instruction(&table->site[index], access, count);
        }
    }
}
