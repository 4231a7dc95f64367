"""The plan sweep on a stand-in for cuDNN's frontend: which plan is chosen, and that whatever fails is only a reason."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from fake_venue import TARGET, StandIn

from convgen.bench import frontend
from convgen.bench.choices import decider
from convgen.bench.results import Entry
from convgen.bench.session import Bench
from convgen.bench.torch_calls import call_of
from convgen.problem import Conv, SuiteEntry

torch = pytest.importorskip("torch")

PROBLEM = "conv2d n=2 c=4 k=8 in=12x12 filter=3 pad=1:0x1:1 stride=2"


class Port:
    """A tensor of the graph; setters return it, as cuDNN's do."""

    def __init__(self, **described: Any) -> None:
        self.described = described

    def __getattr__(self, name: str) -> Any:
        return lambda value: self.described.update({name.removeprefix("set_"): value}) or self


class FakeCudnn(types.ModuleType):
    """Plans take `seconds`; those named in `broken` cannot be built. Computes fprop by PyTorch."""

    def __init__(self, stand_in: StandIn) -> None:
        super().__init__("cudnn")
        self.seconds = [90e-6, 12e-6, 30e-6]
        self.broken: set[int] = set()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.deselected: list[Any] = []
        self.data_type = types.SimpleNamespace(FLOAT="float", HALF="half", BFLOAT16="bfloat16")
        self.heur_mode = types.SimpleNamespace(A="a", FALLBACK="fallback")
        self.numerical_note = types.SimpleNamespace(TENSOR_CORE="tensor core", DOWN_CONVERT_INPUTS="down convert")
        self.create_handle = object
        self.set_stream = lambda handle, stream: None
        self.stand_in = stand_in

    def pygraph(self, **_: Any) -> Any:
        return Graph(self)


class Graph:
    def __init__(self, cudnn: FakeCudnn) -> None:
        self._cudnn = cudnn

    def tensor(self, **described: Any) -> Port:
        return Port(**described)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("conv_"):
            return lambda **options: self._cudnn.asked.append((name, options)) or Port(name="output")
        if name in ("validate", "build_operation_graph", "create_execution_plans", "check_support"):
            return lambda *_: None
        raise AttributeError(name)

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        self._cudnn.deselected = notes

    def get_execution_plan_count(self) -> int:
        return len(self._cudnn.seconds)

    def build_plan_at_index(self, plan: int) -> None:
        if plan in self._cudnn.broken:
            raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")

    def get_workspace_size_plan_at_index(self, plan: int) -> int:
        return 1000 * plan

    def execute_plan_at_index(self, tensors: dict[Port, Any], workspace: Any, plan: int, handle: Any) -> None:
        gpu = self._cudnn.stand_in.gpu
        gpu.work("plan", self._cudnn.seconds[plan])()
        if gpu._captured is None:
            by_name = {port.described["name"]: tensor for port, tensor in tensors.items()}
            problem = Conv.parse(PROBLEM)
            by_name["output"].copy_(call_of(problem, torch, torch.empty)(by_name))


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> FakeCudnn:
    stand_in = StandIn(monkeypatch)
    stand_in.use_torch()
    module = FakeCudnn(stand_in)
    monkeypatch.setitem(sys.modules, "cudnn", module)
    return module


def bench(cudnn: FakeCudnn, text: str = PROBLEM) -> Entry:
    venue = cudnn.stand_in.venue(["cudnn"])
    [found] = Bench(TARGET, venue, decider(), None).run([SuiteEntry("a", "", Conv.parse(text), {})])
    return found


def test_the_fastest_plan_of_all_is_the_peer(cudnn: FakeCudnn) -> None:
    found = bench(cudnn)
    assert found.peers["cudnn_frontend"] == pytest.approx(12.0, rel=1e-2)
    assert found.best_peer == "cudnn_frontend"
    assert found.out_of_bound == []
    assert cudnn.deselected == ["down convert", "tensor core"]


def test_a_plan_that_cannot_be_built_is_passed_over(cudnn: FakeCudnn) -> None:
    cudnn.broken = {1}
    assert bench(cudnn).peers["cudnn_frontend"] == pytest.approx(30.0, rel=1e-2)


def test_no_plan_is_a_reason(cudnn: FakeCudnn) -> None:
    cudnn.broken = {0, 1, 2}
    found = bench(cudnn)
    assert "none of 3 plans" in found.peer_reasons["cudnn_frontend"]
    assert set(found.peers) == {"cudnn_nchw", "cudnn_nhwc"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{PROBLEM} epilogue=relu", "epilogue"),
        ("conv2d n=1 c=2 k=2 in=8x8 filter=3 pad=1 pad_mode=reflect", "reflect"),
        ("conv2d n=1 c=2 k=2 in=8x8 filter=3 dtype=fp16 out_dtype=fp32", "fp32"),
    ],
)
def test_what_the_sweep_does_not_cover_is_a_reason(cudnn: FakeCudnn, text: str, reason: str) -> None:
    assert reason in bench(cudnn, text).peer_reasons["cudnn_frontend"]


def test_without_the_package_there_is_no_such_peer(cudnn: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    found = bench(cudnn)
    assert "cudnn_frontend" not in {*found.peers, *found.peer_reasons}


@pytest.mark.parametrize(
    ("op", "direction", "call", "roles"),
    [
        ("conv2d", "fprop", "conv_fprop", {"image": "x", "weight": "w"}),
        ("conv2d", "dgrad", "conv_dgrad", {"loss": "dy", "filter": "w"}),
        ("conv2d", "wgrad", "conv_wgrad", {"image": "x", "loss": "dy"}),
        ("conv_transpose2d", "fprop", "conv_dgrad", {"loss": "x", "filter": "w"}),
        ("conv_transpose2d", "dgrad", "conv_fprop", {"image": "dy", "weight": "w"}),
        ("conv_transpose2d", "wgrad", "conv_wgrad", {"image": "dy", "loss": "x"}),
    ],
)
def test_every_direction_is_the_call_that_computes_it(
    cudnn: FakeCudnn, op: str, direction: str, call: str, roles: dict[str, str]
) -> None:
    problem = Conv.parse(f"{op} n=2 c=4 k=8 in=9x9 filter=3 pad=1:0 stride=2 direction={direction}")
    _, ports = frontend._graph(cudnn, problem, None)
    [(name, options)] = cudnn.asked
    assert name == call
    assert {role: options[role].described["name"] for role in roles} == roles
    assert (options["pre_padding"], options["post_padding"], options["stride"]) == ([1, 1], [0, 0], [2, 2])
    [spec] = problem.outputs
    assert (ports[spec.name].described["dim"], ports[spec.name].described["stride"]) == (
        list(spec.shape), list(spec.strides),
    )  # fmt: skip
