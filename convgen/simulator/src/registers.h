// setmaxnreg: warpgroups give registers back to the block's pool, and take from it.
//
// How many a thread starts with is ptxas's choice: taken to be all that the register file has for the block's threads,
// which is what a kernel gets whose __launch_bounds__ tell of one block an SM.
#pragma once

#include "mbarrier.h"

constexpr uint32_t kRegisterFile = 65536, kMostRegisters = 256;

static void begin_registers(Worker* w) {
    const uint32_t fair = kRegisterFile / w->threads & ~7u;
    for (uint32_t& registers : w->registers) registers = fair < kMostRegisters ? fair : kMostRegisters;
    w->free_registers = 0;
}

static uint32_t registers_wanted(const Worker* w, uint32_t warpgroup, uint32_t registers) {
    return registers > w->registers[warpgroup] ? (registers - w->registers[warpgroup]) * kWarpgroup : 0;
}

static void take_registers(Worker* w, uint32_t warpgroup, uint32_t registers) {
    w->free_registers -= registers_wanted(w, warpgroup, registers);
    w->registers[warpgroup] = registers;
}

// Whether the warpgroup may go on. `registers` is negative to give back.
static bool set_registers(Worker* w, const Thread* first, int registers) {
    const uint32_t warpgroup = first->linear / kWarpgroup, now = w->registers[warpgroup];
    const uint32_t wanted = static_cast<uint32_t>(registers < 0 ? -registers : registers);
    if (registers < 0 ? wanted > now : wanted < now) {
        break_rule(w, kMisusedRegisters, registers < 0 ? kNoDecrease : kNoIncrease, first->pc, 0, wanted, now);
        return true;
    }
    if (registers < 0) {
        w->free_registers += (now - wanted) * kWarpgroup;
        w->registers[warpgroup] = wanted;
        for (uint32_t i = 0; i < w->threads; i += kWarpgroup) {  // who waits for them
            if (w->state[i] != kAtRegisters) continue;
            const uint32_t needed = static_cast<uint32_t>(w->thread[i].operand);
            if (registers_wanted(w, i / kWarpgroup, needed) > w->free_registers) continue;
            take_registers(w, i / kWarpgroup, needed);
            for (uint32_t lane = 0; lane < kWarpgroup; ++lane) wake(w, &w->thread[i + lane]);
        }
        return true;
    }
    if (registers_wanted(w, warpgroup, wanted) > w->free_registers) return false;
    take_registers(w, warpgroup, wanted);
    return true;
}

static void report_registers(Worker* w, const Thread* t) {
    const uint32_t needed = registers_wanted(w, t->linear / kWarpgroup, static_cast<uint32_t>(t->operand));
    break_rule(w, kDeadlock, kRegistersNeverFree, t->pc, w->free_registers, static_cast<uint64_t>(t->operand), needed);
}
