"""Calls of layers on a fake GPU, whose kernels do nothing: memory, what is decided anew, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fake_decisions import H200, FakeDecider
from fake_gpu import OK, Fake, FakeTensor, Status, aligned, installed, tensor

import convgen
from convgen.api import calls, layers
from convgen.api.choice import Chooser
from convgen.api.decision import Chosen, predicted
from convgen.api.layer_dispatch import LayerDispatcher
from convgen.compiler import Binary
from convgen.errors import DeviceError, ProblemError
from convgen.problem import parse_problem
from convgen.runtime import arrays
from convgen.runtime.cuda import CudaProgram

TRAINING = "batch_norm n=3 c=4 in=5x6 mode=training"
POOLING = "max_pool2d n=3 c=4 in=6x6 filter=2x2"


@dataclass
class Rig:
    """The fake GPU, what is proposed for its calls, and what was compiled and launched."""

    fake: Fake
    decider: FakeDecider
    compiled: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)

    @property
    def programs(self) -> list[CudaProgram]:
        return list(layers.LAYERS._calls._programs.values())  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with installed() as fake:
        made = Rig(fake, FakeDecider([]))

        def compile_cuda(text: str, target: Any, name: str) -> Binary:
            made.compiled.append(name)
            return Binary("sm_90a", b"\x7fELF", "", "", (), "key", "NVRTC", 0.0)

        def launch(function: Any, *others: Any) -> tuple[Any, ...]:
            made.launched.append(function[1])
            return (OK,)

        monkeypatch.setattr(calls, "compile_cuda", compile_cuda)
        monkeypatch.setattr(calls, "target_of", lambda device: H200)
        monkeypatch.setattr(fake.driver, "cuLaunchKernel", launch)
        monkeypatch.setattr(layers, "LAYERS", LayerDispatcher(Chooser(lambda: made.decider)))
        yield made


def propose(gpu: Rig, text: str) -> tuple[Chosen, Chosen]:
    """Let the cost model's choice be proposed, and return it with another config, as if that were tuned."""
    best = predicted(parse_problem(text), H200)[0]
    gpu.decider.ranking = [best]
    return best, Chosen(best.strategy, type(best.config).from_mapping({"vector": 2}, best.config), "tuned")


def train(**options: Any) -> tuple[Any, FakeTensor, FakeTensor]:
    x = tensor(np.ones((3, 4, 5, 6), np.float32))
    mean, var = tensor(np.zeros(4, np.float32)), tensor(np.ones(4, np.float32))
    return convgen.batch_norm(x, mean, var, training=True, **options), mean, var


def test_running_statistics_are_computed_aside_and_copied_to_where_they_are_read(gpu: Rig) -> None:
    """The kernels may read them while they write: here they write nothing, and fresh memory is NaN."""
    propose(gpu, TRAINING)
    for _ in range(2):
        y, mean, var = train()
        assert y.shape == (3, 4, 5, 6)
        assert np.isnan(mean.array).all()
        assert np.isnan(var.array).all()
    assert len(gpu.compiled) == 1


def test_what_a_captured_call_lets_go_of_stays_the_graphs(gpu: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a library whose pool would hand it to the next caller."""
    propose(gpu, TRAINING)
    train()
    monkeypatch.setattr(arrays._TORCH, "owns_graph_memory", False)
    train()
    [program] = gpu.programs
    assert program._graph_memory == []
    gpu.fake.driver.capturing = True
    y, mean, var = train()
    kept = [array for array in program._graph_memory if array.shape == (4,)]
    # Both saved statistics, and both running ones where they are computed; never the caller's own.
    assert len(kept) == 4
    assert not {id(y), id(mean), id(var)} & {id(array) for array in program._graph_memory}


def test_a_given_output_is_returned(gpu: Rig) -> None:
    propose(gpu, POOLING)
    out = FakeTensor(aligned((3, 4, 3, 3)))
    assert convgen.max_pool2d(tensor(np.ones((3, 4, 6, 6), np.float32)), 2, out=out) is out
    assert len(gpu.launched) == 1


def test_a_stored_config_that_does_not_launch_is_passed_over(gpu: Rig) -> None:
    own, tuned = propose(gpu, POOLING)
    gpu.decider.ranking = [tuned, own]
    x = tensor(np.ones((3, 4, 6, 6), np.float32))
    launched: list[str] = []

    def refuse(function: Any, *others: Any) -> tuple[Any, ...]:
        launched.append(function[1])
        return (Status(701),) if len(gpu.compiled) == 1 else (OK,)

    gpu.fake.driver.cuLaunchKernel = refuse  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"tuned for max_pool2d .* cannot be used"):
        convgen.max_pool2d(x, 2)
    assert len(launched) == 2
    convgen.max_pool2d(x, 2)
    assert (len(launched), len(gpu.compiled)) == (3, 2)


def test_what_cuda_refuses_of_a_default_is_told(gpu: Rig) -> None:
    propose(gpu, POOLING)
    gpu.fake.driver.cuLaunchKernel = lambda *arguments: (Status(1),)  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        convgen.max_pool2d(tensor(np.ones((3, 4, 6, 6), np.float32)), 2)


def test_tuning_a_problem_lets_its_bound_calls_be_decided_anew(gpu: Rig) -> None:
    _, gpu.decider.winner = propose(gpu, POOLING)
    x = tensor(np.ones((3, 4, 6, 6), np.float32))
    convgen.max_pool2d(x, 2)
    with convgen.tuning("on_miss"):
        convgen.max_pool2d(x, 2)
    assert len(gpu.decider.tuned) == 1
    convgen.max_pool2d(x, 2)
    assert gpu.launched[1] == gpu.launched[2] != gpu.launched[0]


def test_an_option_that_cannot_be_hashed_is_refused_like_any_other(gpu: Rig) -> None:
    with pytest.raises(ProblemError, match="kernel_size"):
        convgen.max_pool2d(tensor(np.ones((3, 4, 6, 6), np.float32)), np.ones(3))


def test_work_and_memory_go_to_the_current_stream(gpu: Rig) -> None:
    propose(gpu, TRAINING)
    gpu.fake.torch.stream = 11
    train()
    assert {stream for stream, _ in gpu.fake.torch.allocated} == {11}
