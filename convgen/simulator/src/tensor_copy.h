// cp.async.bulk and cp.async.bulk.tensor: copies of boxes between global and shared memory that run by themselves.
//
// A load writes when it is issued or, with Launch::late_copies, not before all threads of the cluster wait: then its bytes
// count on its mbarrier. A store reads when it is waited for, never before. Both act as agents (worker.h), unknown to all
// until then. A load that is multicast is one to each block.
#pragma once

#include <string.h>

#include "mbarrier.h"

constexpr uint32_t kMaxRank = 5, kPiece = 16;
constexpr uint32_t kTensorMapMark = 0x54656e73;

// What convgen/simulator/tensor_map.py makes of cuTensorMapEncodeTiled's arguments: dimension 0 is the innermost.
struct TensorMapBits {
    uint64_t base;
    uint64_t extent[kMaxRank];
    uint64_t stride[kMaxRank - 1];  // bytes; of dimension 1 and on
    uint16_t box[kMaxRank];         // elements of shared memory
    uint8_t step[kMaxRank];
    uint8_t rank, element_bytes, swizzle_bytes;
    uint8_t im2col;  // then box[1] counts pixels
    uint8_t unused;
    int16_t lower[3], upper[3];
    uint8_t unused_too[8];
    uint32_t mark;
    uint8_t padding[4];
};
static_assert(sizeof(TensorMapBits) == 128, "as large as a CUtensorMap");

struct TensorCopy {
    uint64_t base, extent[kMaxRank], stride[kMaxRank];
    uint32_t box[kMaxRank], step[kMaxRank];
    int64_t at[kMaxRank];
    int64_t lower[3], upper[3], shift[3];
    uint32_t im2col_rank;  // 0: a box
    uint32_t element_bytes, swizzle_mask;
    uint64_t shared;  // offset
    uint64_t pc;
    uint32_t time, thread, group;
    uint32_t mbarrier, phase;

    uint32_t row_bytes() const { return box[0] * element_bytes; }
    uint32_t bytes() const { return box[0] * box[1] * box[2] * box[3] * box[4] * element_bytes; }
};

static_assert(kCopiesOffset + 2 * kMaxCopies * sizeof(TensorCopy) < kLocalsOffset, "the copies fit");

// 16-byte pieces change places within a row of the swizzle, by bits 7 and up of their address in shared memory.
static inline uint64_t swizzled(uint64_t address, uint32_t mask) { return address ^ (address >> 3 & mask); }

static inline uint32_t swizzle_mask(uint32_t bytes) { return bytes ? bytes - 16 : 0; }

// Pixels one after the other from the copy's on, along the box between its corners and on to the next image.
template <typename Row>
static void for_each_pixel(const TensorCopy& copy, Row row) {
    const uint32_t images = copy.im2col_rank - 1;  // the dimension
    int64_t at[kMaxRank];
    for (uint32_t d = 0; d < kMaxRank; ++d) at[d] = copy.at[d];
    const int64_t channels = static_cast<int64_t>(copy.extent[0]) - at[0];
    const uint32_t low = at[0] < 0 ? static_cast<uint32_t>(-at[0]) : 0;
    const uint32_t high = channels < 0 ? 0 : channels < copy.box[0] ? static_cast<uint32_t>(channels) : copy.box[0];
    for (uint32_t pixel = 0; pixel < copy.box[1]; ++pixel) {
        bool inside = low < high && at[images] >= 0 && at[images] < static_cast<int64_t>(copy.extent[images]);
        int64_t address = static_cast<int64_t>(copy.base) + at[0] * copy.element_bytes + at[images] * static_cast<int64_t>(copy.stride[images]);
        for (uint32_t d = 1; d < images; ++d) {
            const int64_t place = at[d] + copy.shift[d - 1];
            inside = inside && place >= 0 && place < static_cast<int64_t>(copy.extent[d]);
            address += place * static_cast<int64_t>(copy.stride[d]);
        }
        row(copy.shared + pixel * copy.row_bytes(), static_cast<uint64_t>(address), inside ? low * copy.element_bytes : 0,
            inside ? high * copy.element_bytes : 0);
        uint32_t d = 1;
        for (; d < images; ++d) {
            at[d] += copy.step[d];
            if (at[d] < static_cast<int64_t>(copy.extent[d]) + copy.upper[d - 1]) break;
            at[d] = copy.lower[d - 1];
        }
        if (d == images) ++at[images];
    }
}

// Calls row(offset in shared memory, global address, first and end of the bytes that lie within the tensor).
template <typename Row>
static void for_each_row(const TensorCopy& copy, Row row) {
    if (copy.im2col_rank) return for_each_pixel(copy, row);
    const int64_t begin = copy.at[0], width = copy.box[0], extent = static_cast<int64_t>(copy.extent[0]);
    const int64_t low = begin < 0 ? -begin : 0;
    const int64_t high = extent - begin < width ? extent - begin : width;
    uint64_t shared = copy.shared;
    uint32_t i[kMaxRank] = {};
    for (i[4] = 0; i[4] < copy.box[4]; ++i[4])
        for (i[3] = 0; i[3] < copy.box[3]; ++i[3])
            for (i[2] = 0; i[2] < copy.box[2]; ++i[2])
                for (i[1] = 0; i[1] < copy.box[1]; ++i[1]) {
                    bool inside = low < high;
                    int64_t address = static_cast<int64_t>(copy.base) + begin * copy.element_bytes;
                    for (uint32_t d = 1; d < kMaxRank; ++d) {
                        const int64_t at = copy.at[d] + static_cast<int64_t>(i[d]) * copy.step[d];
                        inside = inside && at >= 0 && at < static_cast<int64_t>(copy.extent[d]);
                        address += at * static_cast<int64_t>(copy.stride[d]);
                    }
                    row(shared, static_cast<uint64_t>(address), inside ? static_cast<uint32_t>(low) * copy.element_bytes : 0,
                        inside ? static_cast<uint32_t>(high) * copy.element_bytes : 0);
                    shared += copy.row_bytes();
                }
}

static bool lies_in_shared(const Worker* w, const TensorCopy& copy) {
    return copy.shared <= w->launch->shared_bytes && copy.bytes() <= w->launch->shared_bytes - copy.shared;
}

static void move_in(Worker* w, const TensorCopy& copy) {
    if (!lies_in_shared(w, copy)) return;
    for_each_row(copy, [&](uint64_t shared, uint64_t global, uint32_t first, uint32_t end) {
        for (uint32_t at = 0; at < copy.row_bytes(); at += kPiece) {
            unsigned char* to = w->shared + swizzled(shared + at, copy.swizzle_mask);
            memset(to, 0, kPiece);
            const uint32_t low = first > at ? first : at, high = end < at + kPiece ? end : at + kPiece;
            if (low < high) memcpy(to + (low - at), reinterpret_cast<const void*>(global + low), high - low);
        }
    });
}

static void move_out(Worker* w, const TensorCopy& copy) {
    if (!lies_in_shared(w, copy)) return;
    for_each_row(copy, [&](uint64_t shared, uint64_t global, uint32_t first, uint32_t end) {
        for (uint32_t at = 0; at < copy.row_bytes(); at += kPiece) {
            const unsigned char* from = w->shared + swizzled(shared + at, copy.swizzle_mask);
            const uint32_t low = first > at ? first : at, high = end < at + kPiece ? end : at + kPiece;
            if (low < high) memcpy(reinterpret_cast<void*>(global + low), from + (low - at), high - low);
        }
    });
}

static void complete_load(Worker* owner, const TensorCopy& copy) {
    move_in(owner, copy);
    Mbarrier* b = &owner->mbarrier[copy.mbarrier];
    if (b->phase != copy.phase) break_rule(owner, kMbarrierMisuse, kLateBytes, copy.pc, b->offset, copy.bytes());
    complete_transactions(owner, b, copy.bytes(), copy.time);
}

// The oldest load into the block's memory that is under way ends.
static void complete_first_load(Worker* owner) {
    const TensorCopy copy = owner->load[owner->loads_begin++ % kMaxCopies];
    complete_load(owner, copy);
}

// One of the cluster's; false if there is none.
static bool complete_a_load(const Cluster* cluster) {
    for (uint32_t rank = 0; rank < cluster->size; ++rank) {
        Worker* w = cluster->block[rank];
        if (w->loads_begin == w->loads_end) continue;
        complete_first_load(w);
        return true;
    }
    return false;
}

static void add_load(Worker* owner, const TensorCopy& copy) {
    if (!owner->launch->late_copies) return complete_load(owner, copy);
    if (owner->loads_end - owner->loads_begin == kMaxCopies) complete_first_load(owner);
    owner->load[owner->loads_end++ % kMaxCopies] = copy;
}

// All but the thread's `groups` latest groups of stores end.
static void end_stores(Worker* w, const Thread* t, uint32_t groups) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->stores; ++i) {
        const TensorCopy copy = w->store[i];
        if (copy.thread != t->linear || copy.group + groups >= t->bulk_groups) {
            w->store[kept++] = copy;
            continue;
        }
        move_out(w, copy);
        uint32_t* known = &w->clock_of(t->linear)[w->rank].known[kStoreAgents + t->linear / kWarp];
        if (*known < copy.time) *known = copy.time;
    }
    w->stores = kept;
}

static void end_copies_of_block(Worker* w) {
    for (uint32_t i = w->loads_begin; i != w->loads_end; ++i) {
        const TensorCopy& copy = w->load[i % kMaxCopies];
        break_rule(w, kIllegalCopy, kLoadUnderWay, copy.pc, copy.shared);
    }
    while (w->loads_begin != w->loads_end) complete_first_load(w);
    for (uint32_t i = 0; i < w->stores; ++i) {
        break_rule(w, kIllegalCopy, kStoreUnderWay, w->store[i].pc, w->store[i].shared);
        move_out(w, w->store[i]);
    }
    w->stores = 0;
}
