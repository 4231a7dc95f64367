"""Benchmarks on a GPU: every contestant captured, verified and timed. Nothing is asserted of how fast any is."""

from __future__ import annotations

from typing import Any

import pytest

from convgen.bench.choices import decider
from convgen.bench.ladder import NAIVE, candidates, climb
from convgen.bench.session import Bench
from convgen.problem import Conv, SuiteEntry, parse_problem
from convgen.target import Target

pytestmark = pytest.mark.gpu

PROBLEMS = (
    "conv2d n=4 c=32 k=32 in=56x56 filter=3 pad=1",
    "conv2d n=4 c=32 k=64 in=28x28 filter=3 stride=2 pad=1 dtype=fp16 layout=nhwc",
    "conv2d n=4 c=64 k=64 groups=64 in=28x28 filter=3 pad=1 dtype=bf16 layout=nhwc",
    "conv1d n=4 c=32 k=32 in=4096 filter=4 pad=3:0 dtype=fp16 layout=nlc",
    "conv2d n=2 c=16 k=16 in=56x56 filter=3 pad=1 pad_mode=reflect epilogue=bias+relu dtype=tf32",
    "conv_transpose2d n=1 c=32 k=16 in=40x40 filter=2 stride=2 dtype=fp16 layout=nhwc",
    "conv3d n=1 c=8 k=8 in=8x28x28 filter=3 pad=1 direction=wgrad",
    "conv2d n=4 c=32 k=32 in=28x28 filter=3 pad=1 direction=dgrad layout=nhwc",
    "conv2d n=1 c=1 k=1 in=512x512 filter=7 pad=3",
)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.current()


def venue(target: Target, against: tuple[str, ...]) -> Any:
    from convgen.bench.venue import GpuVenue

    return GpuVenue(target, against)


@pytest.mark.parametrize("text", PROBLEMS)
def test_ours_and_the_peers_are_verified_and_timed(target: Target, text: str) -> None:
    pytest.importorskip("torch")
    entry = SuiteEntry("a", "", Conv.parse(text), {})
    [found] = Bench(target, venue(target, ("cudnn", "torch")), decider(), None).run([entry])
    assert (found.reason, found.verified) == ("", True)
    assert not {n: r for n, r in found.peer_reasons.items() if n != "cudnn_frontend"}
    assert len([name for name in found.peers if name != "cudnn_frontend"]) == 4
    assert found.out_of_bound == []
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert 0 < found.ratio_low <= found.ratio_high
    assert found.rounds >= 7


LAYERS = {
    "max_pool2d n=4 c=64 in=56x56 filter=3 stride=2 pad=1 dtype=fp16 layout=nhwc": {"aten_nchw", "aten_nhwc"},
    "avg_pool1d n=4 c=64 in=4096 filter=4": {"aten_nchw", "aten_1d_nhwc"},
    "max_pool3d n=2 c=16 in=8x28x28 filter=2 dtype=bf16 layout=ndhwc": {"aten_nchw", "aten_nhwc"},
    "batch_norm n=8 c=64 in=28x28 mode=training": {
        f"{backend}_{form}" for backend in ("cudnn", "aten", "torch") for form in ("nchw", "nhwc")
    },
    "batch_norm n=8 c=64 in=28x28 activation=relu dtype=fp16 layout=nhwc": {
        f"{backend}_{form}" for backend in ("cudnn", "aten", "torch") for form in ("nchw", "nhwc")
    },
}


@pytest.mark.parametrize("text", LAYERS)
def test_layers_and_their_peers_are_verified_and_timed(target: Target, text: str) -> None:
    pytest.importorskip("torch")
    entry = SuiteEntry("a", "", parse_problem(text), {})
    [found] = Bench(target, venue(target, ("cudnn", "torch")), decider(), None).run([entry])
    assert (found.reason, found.verified, found.peer_reasons) == ("", True, {})
    assert found.peers.keys() == LAYERS[text]
    # cuDNN, which PyTorch may take by itself, makes no promise of the bound.
    assert not [name for name in found.out_of_bound if name.startswith("aten")]
    assert found.ratio is not None
    assert found.ratio > 0


def test_what_depends_on_the_weights_is_prepared_ahead(target: Target) -> None:
    problem = Conv.parse("conv2d n=1 c=1 k=1 in=512x512 filter=7 pad=3")
    chosen = decider()(problem, target, None)
    constant = type(chosen.config).from_mapping({"filter": "constant"}, chosen.config)

    def decide(problem: Conv, target: Target, layers: Any) -> Any:
        return type(chosen)(chosen.strategy, constant, "predicted")

    [found] = Bench(target, venue(target, ()), decide, None).run([SuiteEntry("a", "", problem, {})])
    assert (found.reason, found.verified) == ("", True)
    assert found.frozen_us is not None
    assert found.prepare_us is not None


def test_the_ladder_has_every_strategy(target: Target) -> None:
    problem = Conv.parse("conv2d n=1 c=1 k=1 in=512x512 filter=7 pad=3")
    chosen = candidates(problem, target, None)
    rungs = climb(problem, target, venue(target, ()), chosen)
    assert {rung.name for rung in rungs if rung.us is not None} == set(chosen)
    assert NAIVE in chosen
