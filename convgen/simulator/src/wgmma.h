// wgmma: products of tiles in shared memory by the 128 threads of a warpgroup, which run by themselves.
//
// A wgmma reads its operands and adds to its accumulators when it is waited for, never before; so an operand that is
// overwritten meanwhile is seen. Tiles are found as the descriptors tell, the swizzle following absolute addresses with
// base offset 0 (measured on an H200: starts may be shifted by any multiple of 16 bytes, groups by any of 128).
#pragma once

#include <string.h>

#include "matrix.h"
#include "registers.h"
#include "tensor_copy.h"

enum WgmmaType { kWgmmaFp16, kWgmmaBf16, kWgmmaTf32, kWgmmaInt8, kWgmmaUint8, kWgmmaFp8 };

constexpr uint32_t kWgmmaM = 64, kWgmmaMaxN = 256, kWgmmaMaxK = 32;

// What one thread gives; the descriptor of a is that of no tile if a comes from registers.
struct WgmmaOperands {
    void* d;
    const unsigned* a;
    uint64_t a_tile, b_tile;
    int type, n;
    int accumulate, a_transposed, b_transposed;
};

struct Wgmma {
    WgmmaOperands given;  // by the first thread
    void* d[kWarpgroup];
    const unsigned* a[kWarpgroup];
    unsigned a_bits[kWarpgroup][4];
    uint64_t pc;
    uint32_t time, group;
};
static_assert(kWgmmaOffset + kWarpgroups * kMaxWgmmas * sizeof(Wgmma) < kSharedOffset, "those under way fit");

static double fp8_to_double(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double sign = bits & 0x80 ? -1.0 : 1.0;
    if (exponent == 15 && mantissa == 7) return __builtin_nan("");
    if (!exponent) return sign * mantissa * 0x1p-9;
    return sign * (8 + mantissa) * __builtin_bit_cast(double, static_cast<uint64_t>(1023 + exponent - 10) << 52);
}

static uint32_t element_bytes(int type) { return type == kWgmmaTf32 ? 4 : type >= kWgmmaInt8 ? 1 : 2; }

// Element j of the 32 bits.
static double wgmma_element(int type, unsigned bits, uint32_t j, bool is_a) {
    if (type == kWgmmaFp8) return fp8_to_double(static_cast<uint8_t>(bits >> 8 * j));
    return mma_element(static_cast<MmaType>(type), bits, static_cast<int>(j), is_a);
}

// A tile as its descriptor tells, in pieces of 16 bytes.
struct WgmmaTile {
    uint64_t start, leading, stride, base_offset;
    uint32_t row;  // bytes of a row of the swizzle, 16 if there is none
    uint32_t mask;

    explicit WgmmaTile(uint64_t descriptor)
        : start((descriptor & 0x3fff) << 4), leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4), base_offset(descriptor >> 49 & 7) {
        const uint32_t mode = static_cast<uint32_t>(descriptor >> 62);
        row = mode ? 256u >> mode : 16;  // 1: 128 bytes, 2: 64, 3: 32
        mask = mode ? row - 16 : 0;
    }
    // Rows of m (or n), along which k lies: piece `half` of the two of 16 bytes.
    uint64_t along_k(uint32_t m, uint32_t half) const {
        const uint64_t at = start + m % 8 * row + m / 8 * stride + (mask ? half * 16 : half * leading);
        return swizzled(at, mask);
    }
    // Rows of k, along which m (or n) lies: its piece of 8 elements of 16 bits.
    uint64_t along_m(uint32_t piece, uint32_t k) const {
        const uint32_t pieces = row / 16;
        const uint64_t far = mask ? piece / pieces * leading + k / 8 * stride : piece * stride + k / 8 * leading;
        return swizzled(start + piece % pieces * 16 + k % 8 * row + far, mask);
    }
};

template <typename Piece>
static void for_each_piece(uint64_t descriptor, uint32_t rows, bool transposed, Piece piece) {
    const WgmmaTile tile(descriptor);
    if (transposed) {
        for (uint32_t k = 0; k < 16; ++k)
            for (uint32_t m = 0; m < rows / 8; ++m) piece(tile.along_m(m, k), m, k);
    } else {
        for (uint32_t m = 0; m < rows; ++m)
            for (uint32_t half = 0; half < 2; ++half) piece(tile.along_k(m, half), m, half);
    }
}

// element(m, k, value) of a tile of `rows`.
template <typename Element>
static void read_tile(const Worker* w, uint64_t descriptor, uint32_t rows, bool transposed, int type, bool is_a, Element element) {
    const uint32_t bytes = element_bytes(type);
    for_each_piece(descriptor, rows, transposed, [&](uint64_t offset, uint32_t i, uint32_t j) {
        unsigned words[4] = {};
        if (offset + 16 <= w->launch->shared_bytes) memcpy(words, w->shared + offset, 16);
        for (uint32_t e = 0; e < 16 / bytes; ++e) {
            const double value = wgmma_element(type, words[e * bytes / 4], e % (4 / bytes), is_a);
            if (transposed)
                element(i * 8 + e, j, value);
            else
                element(i, j * (16 / bytes) + e, value);
        }
    });
}

// Where register i of a thread's accumulators lies: 16 rows a warp, two columns a lane, then 8 rows on, then 8 columns on.
static inline uint32_t accumulator_row(uint32_t thread, uint32_t i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
static inline uint32_t accumulator_column(uint32_t thread, uint32_t i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

template <typename Sum, int kBits>
static void add_products(const Wgmma& op, const double (*a)[kWgmmaMaxK], const double (*b)[kWgmmaMaxK][kMmaN], int k) {
    for (uint32_t block = 0; block < static_cast<uint32_t>(op.given.n) / kMmaN; ++block) {
        Sum d[kWgmmaM][kMmaN];
        for (uint32_t thread = 0; thread < kWarpgroup; ++thread)
            for (uint32_t i = 4 * block; i < 4 * block + 4; ++i)
                d[accumulator_row(thread, i)][accumulator_column(thread, i) % kMmaN] =
                    op.given.accumulate ? static_cast<const Sum*>(op.d[thread])[i] : Sum(0);
        for (uint32_t m = 0; m < kWgmmaM; ++m) mma_row<kBits>(d[m], a[m], b[block], k);
        for (uint32_t thread = 0; thread < kWarpgroup; ++thread)
            for (uint32_t i = 4 * block; i < 4 * block + 4; ++i)
                static_cast<Sum*>(op.d[thread])[i] = d[accumulator_row(thread, i)][accumulator_column(thread, i) % kMmaN];
    }
}

static __attribute__((noinline)) void run_wgmma(Worker* w, const Wgmma& op) {
    const WgmmaOperands& given = op.given;
    double a[kWgmmaM][kWgmmaMaxK];
    static_assert(sizeof(a) <= 16384, "it lies on a fiber's stack");
    auto* b = reinterpret_cast<double(*)[kWgmmaMaxK][kMmaN]>(w->wgmma_b);
    const uint32_t bytes = element_bytes(given.type), e = 4 / bytes, k = 8 * e;
    if (given.a) {
        for (uint32_t thread = 0; thread < kWarpgroup; ++thread)
            for (uint32_t i = 0; i < 4; ++i)
                for (uint32_t j = 0; j < e; ++j)
                    a[thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8][(4 * (i / 2) + thread % 4) * e + j] =
                        wgmma_element(given.type, op.a_bits[thread][i], j, true);
    } else {
        read_tile(w, given.a_tile, kWgmmaM, given.a_transposed, given.type, true,
                  [&](uint32_t m, uint32_t at, double value) { a[m][at] = value; });
    }
    read_tile(w, given.b_tile, static_cast<uint32_t>(given.n), given.b_transposed, given.type, false,
              [&](uint32_t n, uint32_t at, double value) { b[n / kMmaN][at][n % kMmaN] = value; });
    if (given.type == kWgmmaInt8 || given.type == kWgmmaUint8)
        add_products<int32_t, 0>(op, a, b, static_cast<int>(k));
    else if (given.type == kWgmmaFp8)
        add_products<float, kFp8Bits>(op, a, b, static_cast<int>(k));
    else
        add_products<float, 23 + kExtraBits>(op, a, b, static_cast<int>(k));
    w->totals.flops += 2ull * kWgmmaM * static_cast<uint64_t>(given.n) * k;
}

// What all of the warpgroup's threads know.
static const Clock* common_clock(Worker* w, const Thread* first) {
    Clock* common = w->clock_of(kJoinedClock);
    memset(common, 0xff, w->ranks * sizeof(Clock));
    for (uint32_t i = first->linear; i < first->linear + kWarpgroup; ++i) {
        const Clock* own = own_clock(w, &w->thread[i]);
        for (uint32_t rank = 0; rank < w->ranks; ++rank) meet(&common[rank], &own[rank]);
    }
    return common;
}

static void see_tile(Worker* w, const Clock* clock, uint64_t descriptor, uint32_t rows, bool transposed, const Wgmma& op, uint32_t agent) {
    const uint64_t base_offset = WgmmaTile(descriptor).base_offset;
    if (base_offset) break_rule(w, kIllegalWgmma, kBaseOffset, op.pc, 0, base_offset, 0);
    w->totals.accesses[kShared] += 1;
    w->totals.read_bytes[kShared] += rows * 32;
    for_each_piece(descriptor, rows, transposed, [&](uint64_t offset, uint32_t, uint32_t) {
        const uint64_t address = reinterpret_cast<uint64_t>(w->shared) + offset;
        check_async(w, w, kNoObject, clock, agent, op.time, Touch{address, op.pc, 16, false, false, false, true});
    });
}

static void issue_wgmma(Worker* w, Thread* first) {
    const uint32_t warpgroup = first->linear / kWarpgroup;
    if (w->wgmmas[warpgroup] == kMaxWgmmas) {
        break_rule(w, kIllegalWgmma, kTooManyWgmmas, first->pc, 0, 0, kMaxWgmmas);
        abandon(w);
    }
    Wgmma* op = &w->wgmma[warpgroup * kMaxWgmmas + w->wgmmas[warpgroup]++];
    op->given = *reinterpret_cast<const WgmmaOperands*>(first->value);
    op->pc = first->pc;
    op->time = ++w->cluster->clock;
    op->group = w->wgmma_groups[warpgroup];
    bool differ = false, fenced = true;
    for (uint32_t i = 0; i < kWarpgroup; ++i) {
        const WgmmaOperands& own = *reinterpret_cast<const WgmmaOperands*>(first[i].value);
        op->d[i] = own.d;
        op->a[i] = own.a;
        if (own.a) memcpy(op->a_bits[i], own.a, sizeof(op->a_bits[i]));
        differ |= own.b_tile != op->given.b_tile || own.a_tile != op->given.a_tile || own.accumulate != op->given.accumulate;
        fenced = fenced && first[i].wgmma_fenced;
    }
    w->has_wgmma = true;
    if (!w->launch->check) return;
    use_clocks(w);
    if (differ) break_rule(w, kIllegalWgmma, kOperandsDiffer, op->pc, 0);
    if (!fenced) break_rule(w, kIllegalWgmma, kNoWgmmaFence, op->pc, 0);
    const Clock* clock = common_clock(w, first);
    const uint32_t agent = kWarpgroupAgents + warpgroup * kWarp;
    if (!op->given.a) see_tile(w, clock, op->given.a_tile, kWgmmaM, op->given.a_transposed, *op, agent);
    see_tile(w, clock, op->given.b_tile, static_cast<uint32_t>(op->given.n), op->given.b_transposed, *op, agent);
}

// All but the `groups` latest groups of the warpgroup end.
static void end_wgmmas(Worker* w, const Thread* first, uint32_t groups) {
    const uint32_t warpgroup = first->linear / kWarpgroup;
    Wgmma* ops = &w->wgmma[warpgroup * kMaxWgmmas];
    uint32_t done = 0, time = 0;
    for (; done < w->wgmmas[warpgroup] && ops[done].group + groups < w->wgmma_groups[warpgroup]; ++done) {
        run_wgmma(w, ops[done]);
        time = ops[done].time;
    }
    w->wgmmas[warpgroup] -= done;
    memmove(ops, ops + done, w->wgmmas[warpgroup] * sizeof(Wgmma));
    for (uint32_t i = first->linear; i < first->linear + kWarpgroup; ++i) {
        uint32_t* known = &w->clock_of(i)[w->rank].known[kWarpgroupAgents + warpgroup * kWarp];
        if (*known < time) *known = time;
        if (!groups) w->thread[i].wgmma_fenced = false;
    }
    w->has_wgmma = false;
    for (uint32_t under_way : w->wgmmas) w->has_wgmma |= under_way != 0;
}

static bool execute_in_warpgroup(Worker* w, Thread* first) {
    w->current = first;
    switch (first->operation) {
        case kWgmma: issue_wgmma(w, first); return true;
        case kWgmmaWait: end_wgmmas(w, first, static_cast<uint32_t>(first->operand)); return true;
        default: return set_registers(w, first, first->operand);
    }
}

static void end_wgmmas_of_block(Worker* w) {
    for (uint32_t warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup)
        for (uint32_t i = 0; i < w->wgmmas[warpgroup]; ++i)
            break_rule(w, kIllegalWgmma, kWgmmaUnderWay, w->wgmma[warpgroup * kMaxWgmmas + i].pc, 0);
}

// A thread touches its own registers: not those that a wgmma under way uses.
static void see_registers(Worker* w, uint64_t address, bool write, uint64_t pc) {
    const Thread* t = w->current;
    const uint32_t warpgroup = t->linear / kWarpgroup, own = t->linear % kWarpgroup;
    for (uint32_t i = 0; i < w->wgmmas[warpgroup]; ++i) {
        const Wgmma& op = w->wgmma[warpgroup * kMaxWgmmas + i];
        if (address - reinterpret_cast<uint64_t>(op.d[own]) < static_cast<uint64_t>(op.given.n) * 2)
            return break_rule(w, kInFlight, kAccumulatorInFlight, pc, 0);
        if (write && op.a[own] && address - reinterpret_cast<uint64_t>(op.a[own]) < 16)
            return break_rule(w, kInFlight, kOperandInFlight, pc, 0);
    }
}
