"""What convgen itself costs: import, a first compile, a cached compile, and a warm call beside the bare launch.

usage: python benchmarks/overheads.py
The warm call needs a GPU. Without one, its Python part is measured on stand-ins for tensors and driver, in pieces.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

from convgen.errors import DeviceError
from convgen.plan import Plan

PROBLEM = "conv2d n=32 c=64 k=128 in=56x56 filter=3x3 pad=1"
COMPILE = f"""
import time; start = time.perf_counter()
from convgen.compiler import compile_cuda
from convgen.lowering import lower
from convgen.problem import Conv
from convgen.render import render
from convgen.strategies import get_strategy
from convgen.target import Target
target = Target.preset("h200")
plan = lower(Conv.parse("{PROBLEM}"), get_strategy("direct"), None, target)
compile_cuda(render(plan), target)
print(time.perf_counter() - start)
"""
IMPORT = "import time; start = time.perf_counter(); import convgen; print(time.perf_counter() - start)"

X, W, Y = (1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 8, 8)
"""A convolution that takes the GPU less time than a launch takes the host."""


def fresh(code: str, environment: dict[str, str]) -> float:
    """Seconds the code prints, in a new interpreter."""
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout)


def per_call(call: Callable[[], Any], synchronize: Callable[[], Any], repeats: int = 200, rounds: int = 15) -> float:
    """Seconds a call takes the host: the median of rounds that begin with an idle GPU."""
    call()
    times = []
    for _ in range(rounds):
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats)
    synchronize()
    return statistics.median(times)


def show(label: str, seconds: float, bare: float | None = None) -> None:
    beside = "" if bare is None else f"  +{(seconds - bare) * 1e6:.2f}"
    print(f"  {label:42}{seconds * 1e6:7.2f} us{beside}")


# --- on a GPU --------------------------------------------------------------------------------------------------


def on_gpu() -> None:
    """Warm calls on both libraries' arrays beside the bare launch of the same kernel."""
    import cupy

    synchronize = cupy.cuda.Device().synchronize
    x, w, y = (cupy.ones(shape, cupy.float32) for shape in (X, W, Y))
    plan = one_launch()
    bare, run = launches(plan, x, w, y, synchronize)
    print("warm calls on the GPU, host time; beside it what is more than the bare launch")
    show("bare cuLaunchKernel", bare)
    show("CudaProgram.run, CuPy arrays, output given", run, bare)
    calls("CuPy", plan, x, w, y, synchronize, bare)
    try:
        import torch
    except ImportError:
        return
    x, w, y = (torch.ones(shape, device="cuda") for shape in (X, W, Y))
    calls("PyTorch", plan, x, w, y, torch.cuda.synchronize, bare)
    with torch.no_grad():
        show("torch.nn.functional.conv2d", per_call(
            lambda: torch.nn.functional.conv2d(x, w, padding=1), torch.cuda.synchronize
        ))  # fmt: skip


def one_launch() -> Plan:
    """A plan for X and W that is a single kernel."""
    from convgen.lowering import lower
    from convgen.problem import Conv
    from convgen.strategies import get_strategy
    from convgen.target import Target

    problem = Conv.parse("conv2d n=1 c=8 k=8 in=8 filter=3 pad=1")
    strategy, target = get_strategy("direct"), Target.current()
    default = strategy.default(problem, target)
    config = type(default).from_mapping({"split_q": 1, "split_taps": 1, "filter": "global"}, default)
    return lower(problem, strategy, config, target)


def launches(plan: Plan, x: Any, w: Any, y: Any, synchronize: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of cuLaunchKernel with ready-packed arguments, and of `CudaProgram.run`."""
    from convgen.runtime.cuda import build_and_load
    from convgen.runtime.driver import check, driver

    program = build_and_load(plan)
    run = per_call(lambda: program.run({"x": x, "w": w}, {"y": y}), synchronize)
    module = program.load_on(0, 0)
    block, [launch] = module.take(), plan.launches
    index = plan.steps.index(launch)
    cuda = driver()
    function, stream = module.functions[launch.kernel.name], cuda.CUstream(0)
    arguments = (function, *launch.grid, *launch.block, launch.shared_bytes, stream, block.pointers[index], 0)
    return per_call(lambda: check(cuda.cuLaunchKernel(*arguments)), synchronize), run


def calls(name: str, plan: Plan, x: Any, w: Any, y: Any, synchronize: Callable[[], Any], bare: float) -> None:
    import convgen
    from convgen.api.decision import Chosen, place_of, write_decisions
    from convgen.strategies import get_strategy

    chosen = Chosen(get_strategy(plan.strategy), plan.config, "")
    convgen.tuning("frozen", decisions=write_decisions([(place_of(plan.problem, plan.target), chosen)]))
    prepared = convgen.prepare(w, x, padding=1)
    for label, call in {
        "conv2d": lambda: convgen.conv2d(x, w, padding=1),
        "conv2d, output given": lambda: convgen.conv2d(x, w, padding=1, out=y),
        "conv2d, weight prepared": lambda: convgen.conv2d(x, prepared, padding=1),
    }.items():
        show(f"{label}, {name} arrays", per_call(call, synchronize), bare)


# --- without one ---------------------------------------------------------------------------------------------


class Standin:
    """What a call reads of a tensor, about as fast as a real one's attributes."""

    __slots__ = ("_pointer", "_stride", "device", "dtype", "is_cuda", "requires_grad", "shape")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.device = shape, "torch.float32", 0
        self.is_cuda, self.requires_grad = True, False
        self._pointer, self._stride = 512, tuple(0 for _ in shape)
        step, strides = 1, []
        for extent in reversed(shape):
            strides.append(step)
            step *= extent
        self._stride = tuple(reversed(strides))

    def data_ptr(self) -> int:
        return self._pointer

    def stride(self) -> tuple[int, ...]:
        return self._stride

    def get_device(self) -> int:
        return 0

    def new_empty_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Standin:
        return self


class NoDriver:
    """Takes every call and does nothing."""

    CUstream = int
    CUstreamCaptureStatus = types.SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUfunction_attribute = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: (0, 0, 0)


def raw_stream_of(torch: Any) -> Callable[[int], int]:
    return lambda device: 0


def without_gpu() -> None:
    """The Python part of a warm call, and what its pieces take."""
    from convgen.api import dispatch
    from convgen.api.decision import predicted
    from convgen.compiler import Binary
    from convgen.runtime import arrays, bound, cuda, driver, module, prepared
    from convgen.target import Target

    binary = Binary("sm_90a", b"", "", "", (), "", "", 0.0)
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(
            current_device=lambda: 0, current_stream=lambda device: types.SimpleNamespace(cuda_stream=0)
        )
    )
    decider = types.SimpleNamespace(ranked=predicted)
    with mock.patch.dict(sys.modules, torch=torch):
        for part in (driver, cuda, module, bound, prepared):
            mock.patch.object(part, "driver", NoDriver).start()
        mock.patch.object(dispatch, "compile_cuda", return_value=binary).start()
        mock.patch.object(dispatch, "target_of", return_value=Target.preset("h200")).start()
        mock.patch.object(arrays, "_raw_stream_of", raw_stream_of).start()
        dispatcher = dispatch.Dispatcher(lambda: decider)
        x, w = Standin(X), Standin(W)
        operands, options = (x, w, None, None, None, None, None), (1, 1, 0, 1, 1, None, None, "strict", None)
        dispatcher.call("conv2d", operands, options)
        [entry] = dispatcher._calls.values()
        short = entry._bound
        assert short is not None
        assert short((x, w)) is not None
        library = arrays.libraries[Standin]
        parts = {
            "the whole call, driver and allocation taken out": lambda: dispatcher.call("conv2d", operands, options),
            "of which behind the table": lambda: entry(operands),
            "of which the bound call": lambda: short((x, w)),
            "a tensor's signature": lambda: library.signature(x),
            "a tensor's address": lambda: library.address(x),
            "current device and stream": lambda: (library.current_device(), library.current_stream(0)),
        }
        print("a warm call's Python part, on stand-ins")
        for label, call in parts.items():
            show(label, min(per_call(call, lambda: None, 1000, 1) for _ in range(50)))
        mock.patch.stopall()


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "CONVGEN_CACHE_DIR": cache}
        imports = [fresh(IMPORT, environment) for _ in range(9)]
        first, second = fresh(COMPILE, environment), fresh(COMPILE, environment)
    print(f"import convgen            {statistics.median(imports) * 1e3:7.1f} ms (median of 9)")
    print(f"first compile of direct   {first * 1e3:7.1f} ms, imports and NVRTC's start included")
    print(f"the same from the cache   {second * 1e3:7.1f} ms")
    try:
        from convgen.target import Target

        Target.current()
    except DeviceError:
        without_gpu()
    else:
        on_gpu()


if __name__ == "__main__":
    main()
