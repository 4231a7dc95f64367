"""Mistakes planted in flash attention's text: each is found, by the simulator or by the oracle's bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from convgen.lowering import lower
from convgen.problem import Attention
from convgen.reference import attention as oracle
from convgen.reference import compare, encode
from convgen.render import render
from convgen.runtime.physical import with_strides
from convgen.runtime.sim import SimProgram, build
from convgen.simulator import FaultKind
from convgen.strategies import flash_attention
from convgen.strategies.flash_tiling import FlashAttentionConfig
from convgen.target import Target

STRATEGY = flash_attention.STRATEGY
TARGET = Target.preset("h200")
SHAPE = "attention batch=2 heads_q=4 heads_kv=2 seq_q=40 seq_kv=75 head_dim=24 dtype=fp16"


@dataclass(frozen=True)
class Mistake:
    """Text to replace, what by, on which problem, and the config beside the plainest."""

    right: str
    wrong: str
    words: str = "causal=bottom_right"
    config: str = ""
    kind: str = "normal"


IN_NUMBERS = {
    "the diagonal": Mistake("j <= i + sizes.diagonal() + 0", "j <= i + sizes.diagonal() + 1"),
    "the end of the keys": Mistake("return j < sizes.keys", "return true", ""),
    "the last block": Mistake("+ kBlockKv - 1) / kBlockKv;", ") / kBlockKv;", ""),
    "the head of the keys": Mistake("h0 / kGroup, sizes.keys)", "h0 % kHeadsKv, sizes.keys)"),
    "sums that do not shrink": Mistake("scale_row(acc, row, factor[row]);", ";", "", kind="peaked"),
    "totals that do not shrink": Mistake("total[row] *= factor[row];", "", "", kind="peaked"),
    "rows without keys": Mistake(
        "shift == -infinity() ? 0.0f : shift", "shift", "causal=bottom_right window=2:0 mask=pair"
    ),
    "a lane's share of the total": Mistake("total[row] += __shfl_xor_sync(0xffffffffu, total[row], 2);", "", ""),
    "the scale": Mistake("finite(shift[row]) * kFactor;", "finite(shift[row]);", ""),
    "the sink": Mistake(" + exp2_fast((sink - after) * kLog2E);", ";", "sink=yes"),
    "a warp's part": Mistake("other < kWarpsKv", "other < kWarpsKv - 1", "", "warps_kv=2,block_kv=32"),
    "a part of the keys": Mistake(
        "part < kSplits; ++part) sum +=", "part < kSplits - 1; ++part) sum +=", "", "splits=3"
    ),
    "a packed row's head": Mistake("h0 + (r0 + row) % kPack", "h0", "", "pack_heads=yes"),
    "the natural logarithm": Mistake("shift + logf(total)", "shift + log2f(total)", "lse=yes"),
    "columns of v": Mistake(
        "lane % 16 * kPitchV + lane / 16 * 8", "lane % 16 * kPitchV + lane / 8 % 2 * 8", "head_dim_v=32"
    ),
}

IN_ORDER = {
    "a missing wait": (
        Mistake("cp_async_wait_group<kAhead - 1>();\n        __syncthreads();", "__syncthreads();"),
        None,
    ),
    "a wait for too few": (Mistake("cp_async_wait_group<kAhead - 1>();", "cp_async_wait_group<kAhead>();"), None),
    "a missing barrier": (
        Mistake("cp_async_wait_group<kAhead - 1>();\n        __syncthreads();", "cp_async_wait_group<kAhead - 1>();"),
        FaultKind.RACE,
    ),
    "a buffer too few": (Mistake("number / 2 % kBuffers", "0 % kBuffers", config="buffers=2"), None),
    "o over the tiles": (
        Mistake("__syncthreads();  // shared memory has another use now", "", "head_dim_v=64"),
        FaultKind.RACE,
    ),
}


@pytest.mark.parametrize("name", IN_NUMBERS)
def test_a_wrong_number_is_found(name: str) -> None:
    mistake = IN_NUMBERS[name]
    assert is_right(mistake, planted=False)
    assert not is_right(mistake, planted=True)


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_broken_order_is_found(name: str) -> None:
    mistake, kind = IN_ORDER[name]
    program, problem = built(mistake, planted=True)
    inputs = oracle.make_inputs(problem, 0, "normal")
    report = program.run(*arrays(problem, inputs)).report
    assert report.faults
    assert kind is None or kind in {fault.kind for fault in report.faults}


def built(mistake: Mistake, *, planted: bool) -> tuple[SimProgram, Attention]:
    problem = Attention.parse(f"{SHAPE} {mistake.words}")
    plain = FlashAttentionConfig("mma", 1, 2, 1, 16, 1, False, False, 1)
    plan = lower(problem, STRATEGY, FlashAttentionConfig.parse(mistake.config, plain), TARGET)
    source = render(plan)
    assert mistake.right in source
    return build([plan], [source.replace(mistake.right, mistake.wrong) if planted else source])[0], problem


def arrays(problem: Attention, inputs: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    stored = {spec.name: with_strides(spec, encode(inputs[spec.name], spec.dtype), np) for spec in problem.inputs}
    return stored, {spec.name: encode(np.zeros(spec.shape), spec.dtype) for spec in problem.outputs}


def is_right(mistake: Mistake, *, planted: bool) -> bool:
    program, problem = built(mistake, planted=planted)
    inputs = oracle.make_inputs(problem, 0, mistake.kind)
    stored, outputs = arrays(problem, inputs)
    report = program.run(stored, outputs).report
    expected = oracle.reference(problem, inputs)
    limits = oracle.bound(problem, inputs, expected, program.plan.numerics)
    found = [compare(spec, outputs[spec.name], expected[spec.name], limits[spec.name]).ok for spec in problem.outputs]
    return all(found) and not report.faults
