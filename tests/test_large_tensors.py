"""Tensors of more than 2^31 elements, as kernels meet them: addresses of that range, of which few pages are touched.

Inputs are zeros but for what the blocks that run read; every kernel runs whole or, of a large grid, its first and last
blocks, every access checked. The answers are those of the same problem cut down to the part that is compared.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from convgen.gather import NARROW
from convgen.lowering import lower, why_not
from convgen.plan import Arg, CopyToSymbol, Launch, Plan, ScalarArg, SizeArg, TensorArg, WorkspaceArg, extent_at
from convgen.problem import Problem, TensorSpec, parse_problem
from convgen.reference import definition_of
from convgen.render import render
from convgen.runtime.physical import unflat
from convgen.runtime.sim import build
from convgen.simulator import FaultKind, Memory, Report
from convgen.simulator.memory import Block
from convgen.space import Config
from convgen.strategies import Strategy, get_strategy, strategies_of
from convgen.target import Target

TARGET = Target.preset("h200")
WHOLE_GRID = 40_000
"""Blocks of a grid that is run whole; of a larger one the first and the last EDGE."""
EDGE = 8
_MAP_NORESERVE = 0x4000


class Large(Memory):
    """Buffers whose pages are there once they are used: outputs start as zeros."""

    def tensor(self, spec: TensorSpec, *, writable: bool) -> Block:
        block = self.allocate(spec.name, spec.nbytes, writable=False, initialised=True, granule=spec.dtype.itemsize)
        if writable:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            writer = np.frombuffer(mmap.mmap(-1, 8 * max(spec.size, 1), flags=flags), np.uint64)
            block = self.blocks[-1] = dataclasses.replace(block, writer=writer)
        return block

    def begin_launch(self, is_early: bool = False) -> None:
        """Only workspaces are written by one kernel and used by another; a pass over an output would touch it all."""
        outputs = [block for block in self.blocks if block.writer is not None and block.nbytes >= 1 << 31]
        others = [block for block in self.blocks if block not in outputs]
        whole, self.blocks = self.blocks, others
        super().begin_launch(is_early)
        self.blocks = whole


class Run:
    """A plan's kernels on tensors that `fill` writes into."""

    def __init__(self, plan: Plan, text: str) -> None:
        self.plan, self.problem = plan, plan.problem
        self.memory = Large()
        self.blocks = {spec.name: self.memory.tensor(spec, writable=False) for spec in self.problem.inputs}
        self.blocks |= {spec.name: self.memory.tensor(spec, writable=True) for spec in self.problem.outputs}
        for buffer in plan.workspace:
            nbytes = extent_at(buffer.nbytes, self.problem.sizes)
            self.blocks[buffer.name] = self.memory.allocate(buffer.name, nbytes, writable=True, initialised=False)
        [self.program] = build([plan], [text])

    def array(self, name: str) -> Any:
        """The whole of a tensor in logical order; a view, of fp16."""
        spec = self.problem.tensor(name)
        return unflat(spec, self.blocks[name].bytes.view(np.float16 if spec.dtype.itemsize == 2 else np.float32))

    def written(self, name: str) -> Any:
        """Which elements of an output were written; a view."""
        writer = self.blocks[name].writer
        assert writer is not None
        return unflat(self.problem.tensor(name), writer)

    def go(self, whole_grid: int = WHOLE_GRID) -> Report:
        report = Report()
        library, unit = self.program.library, self.program.unit
        for step in self.plan.steps:
            if isinstance(step, CopyToSymbol):
                ctypes.memmove(library.symbol(unit, step.symbol)[0], self._argument(step.source).address, step.nbytes)
                continue
            assert isinstance(step, Launch)
            x, y, z = (extent_at(extent, self.problem.sizes) for extent in step.grid)
            total = x * y * z
            report += library.launch(
                unit, step.kernel, (x, y, z), step.block, step.shared_bytes,
                [self._argument(arg) for arg in step.args], self.memory,
                blocks=None if total <= whole_grid else [*range(EDGE), *range(total - EDGE, total)],
            )  # fmt: skip
        return report

    def _argument(self, arg: Arg) -> Any:
        match arg:
            case TensorArg(name) | WorkspaceArg(name):
                return self.blocks[name]
            case SizeArg(name):
                return self.problem.sizes[name]
            case ScalarArg(value):
                return value
        raise AssertionError(f"{arg} is not of these problems")


def prepared(problem: Problem, strategy: Strategy, changes: Mapping[str, int | str], narrow: bool = False) -> Run:
    default = strategy.default(problem, TARGET)
    config: Config = type(default).from_mapping(changes, default)
    plan = lower(problem, strategy, config, TARGET)
    text = render(plan)
    assert "using offset_t = long long;" in text
    return Run(plan, text.replace("using offset_t = long long;", "using offset_t = int;") if narrow else text)


def integers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(np.float16)


def expected(text: str, **inputs: Any) -> Any:
    """Every output of the problem cut down."""
    problem = parse_problem(text)
    return definition_of(problem).reference(problem, {name: a.astype(np.float64) for name, a in inputs.items()})


def applicable(*texts: str) -> list[Any]:
    """Pairs of a problem and a strategy for it. Blocks of those on wgmma stay: none of them can be run alone."""
    pairs = [(text, strategy) for text in texts for strategy in strategies_of(parse_problem(text))]
    return [
        pytest.param(text, strategy, id=f"{strategy.name}-{text}")
        for text, strategy in pairs
        if why_not(parse_problem(text), strategy, TARGET) is None and not strategy.name.startswith("wgmma")
    ]


# --- convolutions -------------------------------------------------------------------------------------

FAR_APART = "conv2d n=2 c=136 in=4003x4003 k=2 filter=3 stride=1000 dtype=fp16 accuracy=fast"
MANY_CHANNELS = "conv2d n=2 c=1 in=256x256 k=32800 filter=3 pad=1 dtype=fp16 accuracy=fast"
MANY_IMAGES = "conv2d n=1050000 c=2 in=32x32 k=2 filter=3 pad=1 dtype=fp16 accuracy=fast"


@pytest.mark.parametrize(
    ("text", "strategy"),
    applicable(FAR_APART, f"{FAR_APART} layout=nhwc", f"{FAR_APART} direction=wgrad"),
)
def test_an_input_is_read_beyond_2_31(text: str, strategy: Strategy) -> None:
    run = prepared(parse_problem(text), strategy, {})
    other, output = ("dy", "dw") if "wgrad" in text else ("w", "y")
    values = np.zeros((2, 136, 15, 15), np.float16)
    values[:, [0, 135]] = integers(2, 2, 15, 15)
    rows = (1000 * np.arange(5)[:, None] + np.arange(3)).ravel()
    for channel in (0, 135):
        run.array("x")[:, channel, rows[:, None], rows] = values[:, channel]
    run.array(other)[...] = factors = integers(*run.problem.tensor(other).shape)
    assert not run.go().faults
    cut = text.replace("in=4003x4003", "in=15x15").replace("stride=1000", "stride=3")
    np.testing.assert_allclose(run.array(output), expected(cut, **{"x": values, other: factors})[output], atol=0.05)


@pytest.mark.parametrize(("text", "strategy"), applicable(MANY_CHANNELS, f"{MANY_CHANNELS} layout=nhwc"))
def test_an_output_is_written_beyond_2_31(text: str, strategy: Strategy) -> None:
    run = prepared(parse_problem(text), strategy, {})
    run.array("x")[...] = x = integers(2, 1, 256, 256)
    run.array("w")[...] = w = integers(32800, 1, 3, 3)
    assert not run.go().faults
    corner = np.s_[-1:, -1:, -1:, -20:]
    written = run.written("y")[corner] != 0
    assert written[..., -1].all()
    cut = text.replace(" n=2 ", " n=1 ").replace("k=32800", "k=1")
    answer = expected(cut, x=x[1:], w=w[-1:])["y"]
    np.testing.assert_allclose(run.array("y")[corner][written], answer[corner][written], atol=0.05)


def test_a_last_image_is_found_beyond_2_31() -> None:
    """Of Winograd, which takes no stride and so has no small output of a large input."""
    run = prepared(parse_problem(MANY_IMAGES), get_strategy("winograd"), {"kernels": "fused"})
    run.array("x")[-1] = x = integers(2, 32, 32)
    run.array("w")[...] = w = integers(2, 2, 3, 3)
    assert not run.go().faults
    corner = np.s_[-1:, -1:, -1:, -4:]
    written = run.written("y")[corner] != 0
    assert written[..., -1].all()
    answer = expected(MANY_IMAGES.replace("n=1050000", "n=1"), x=x[None], w=w)["y"]
    np.testing.assert_allclose(run.array("y")[corner][written], answer[corner][written], atol=0.05)


LONGEST = NARROW - 2
LONG = f"c=1 in={LONGEST} filter=3 pad=1 dtype=fp16"
MIRRORED = f"conv1d k=1 c=1 in={NARROW // 2} filter=3 pad=1 pad_mode=reflect dtype=fp16 accuracy=fast"


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        pytest.param(MIRRORED, get_strategy("direct"), id="mirrored"),
        *applicable(
            f"conv1d k=1 {LONG} accuracy=fast",
            f"conv1d k=1 {LONG} accuracy=fast pad_mode=circular",
            f"conv1d k=1 {LONG} accuracy=fast direction=dgrad",
            f"max_pool1d {LONG} stride=1",
            f"avg_pool1d {LONG} stride=1 count_include_pad=no",
        ),
    ],
)
def test_an_axis_may_be_as_long_as_32_bits_count(text: str, strategy: Strategy) -> None:
    """Its ends are those of an axis of 6000 pixels; there are zeros between."""
    problem = parse_problem(text)
    plan = lower(problem, strategy, None, TARGET)
    run = Run(plan, render(plan))
    source, output = ("dy", "dx") if "dgrad" in text else ("x", "y")
    ends, pixels, inputs = np.r_[0:64, -64:0], np.zeros((1, 1, 6000), np.float16), {}
    run.array(source)[..., ends] = pixels[..., ends] = integers(1, 1, 128)
    if "conv" in text:
        run.array("w")[...] = inputs["w"] = integers(1, 1, 3)
    assert not run.go().faults
    answer = expected(text.replace(str(problem.tensor(source).shape[-1]), "6000"), **inputs, **{source: pixels})[output]
    ends = np.r_[0:8, -8:0]
    assert (run.written(output)[..., ends] != 0).all()
    np.testing.assert_allclose(run.array(output)[..., ends], answer[..., ends], atol=0.05)


@pytest.mark.parametrize(
    "text",
    [
        f"conv1d k=1 {LONG} stride=2",
        f"conv_transpose1d k=1 c=1 in={LONGEST} filter=4",
        MIRRORED,
        f"max_pool1d {LONG} stride=1",
    ],
)
def test_a_longer_axis_is_refused(text: str) -> None:
    problem = parse_problem(re.sub(r"in=(\d+)", lambda found: f"in={int(found[1]) + 1}", text))
    reasons = [why_not(problem, strategy, TARGET) for strategy in strategies_of(problem)]
    assert None not in reasons
    assert any("kernels keep coordinates in 32 bits, up to 2147418112" in str(reason) for reason in reasons)


def test_offsets_of_32_bits_would_be_found() -> None:
    run = prepared(parse_problem(FAR_APART), get_strategy("implicit_gemm"), {}, narrow=True)
    run.array("w")[...] = 1
    assert FaultKind.OUT_OF_BOUNDS in {fault.kind for fault in run.go().faults}


# --- layers -------------------------------------------------------------------------------------------

OF_CHANNELS = "n=2 c=2100000 in=32x32 dtype=fp16"


@pytest.mark.parametrize(
    ("text", "strategy"),
    applicable(
        f"avg_pool2d {OF_CHANNELS} filter=32",
        f"max_pool2d {OF_CHANNELS} filter=3 stride=2",
        f"batch_norm {OF_CHANNELS}",
        f"batch_norm {OF_CHANNELS} mode=training",
    ),
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layers_beyond_2_31(text: str, strategy: Strategy, layout: str) -> None:
    problem = parse_problem(f"{text} layout={layout}")
    run = prepared(problem, strategy, {})
    inputs = {}
    for spec in problem.inputs:
        last = run.array(spec.name)[..., -8:] if len(spec.shape) == 1 else run.array(spec.name)[:, -8:]
        last[...] = inputs[spec.name] = integers(*last.shape) if len(spec.shape) > 1 else np.arange(1, 9)
    assert not run.go(whole_grid=0).faults
    answers = expected(str(problem).replace("c=2100000", "c=8"), **inputs)
    for name, answer in answers.items():
        channels = np.s_[-8:] if answer.ndim == 1 else np.s_[:, -8:]
        got, written = run.array(name)[channels], run.written(name)[channels] != 0
        assert written[(-1,) * answer.ndim]
        np.testing.assert_allclose(got[written], answer[written], rtol=2e-3, atol=2e-3)


# --- attention ----------------------------------------------------------------------------------------

MANY_HEADS = "attention batch=65600 heads_q=8 seq_q=1 seq_kv=64 head_dim=64 dtype=fp16"


@pytest.mark.parametrize(("text", "strategy"), applicable(MANY_HEADS))
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_attention_beyond_2_31(text: str, strategy: Strategy, layout: str) -> None:
    """The last 8 blocks are the last batch's 8 heads."""
    text = f"{text} layout={layout}"
    run = prepared(parse_problem(text), strategy, {"block": 64} if strategy.name == "naive_attention" else {})
    inputs = {name: integers(*run.problem.tensor(name).shape[1:]) / 4 for name in ("q", "k", "v")}
    for name, values in inputs.items():
        run.array(name)[-1] = values
    assert not run.go().faults
    assert run.written("o")[-1].all()
    answer = expected(text.replace("batch=65600", "batch=1"), **{name: a[None] for name, a in inputs.items()})["o"]
    np.testing.assert_allclose(run.array("o")[-1:], answer, rtol=2e-3, atol=2e-3)
