"""What convgen itself costs: import, a first compile, a cached compile, and a warm call beside the bare launch.

usage: python benchmarks/overheads.py
The warm call needs a GPU and is left out without one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from convgen.errors import DeviceError

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


def fresh(code: str, environment: dict[str, str]) -> float:
    """Seconds the code prints, in a new interpreter."""
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout)


def per_call(call: Callable[[], Any], synchronize: Callable[[], Any], repeats: int = 200) -> float:
    times = []
    for _ in range(9):
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats)
    synchronize()
    return statistics.median(times)


def warm_call() -> tuple[float, float]:
    """Seconds of `run` on CuPy arrays, and of cuLaunchKernel with ready-packed arguments."""
    import cupy

    from convgen.lowering import lower
    from convgen.problem import Conv
    from convgen.runtime.cuda import build_and_load
    from convgen.runtime.driver import check, driver
    from convgen.strategies import get_strategy
    from convgen.target import Target

    problem = Conv.parse("conv2d n=1 c=1 k=1 in=8 filter=3 pad=1")
    program = build_and_load(lower(problem, get_strategy("direct"), None, Target.current()))
    inputs = {t.name: cupy.zeros(t.shape, cupy.float32) for t in problem.inputs}
    outputs = program.run(inputs)
    [module] = program._modules.values()
    function, pointers = module.blocks[0].function, module.blocks[0].pointers_address
    [launch] = program.plan.launches
    cuda = driver()
    stream = cuda.CUstream(0)

    def bare() -> None:
        check(cuda.cuLaunchKernel(function, *launch.grid, *launch.block, launch.shared_bytes, stream, pointers, 0))

    synchronize = cupy.cuda.Device().synchronize
    return per_call(lambda: program.run(inputs, outputs), synchronize), per_call(bare, synchronize)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "CONVGEN_CACHE_DIR": cache}
        imports = [fresh(IMPORT, environment) for _ in range(9)]
        first, second = fresh(COMPILE, environment), fresh(COMPILE, environment)
    print(f"import convgen            {statistics.median(imports) * 1e3:7.1f} ms (median of 9)")
    print(f"first compile of direct   {first * 1e3:7.1f} ms, imports and NVRTC's start included")
    print(f"the same from the cache   {second * 1e3:7.1f} ms")
    try:
        called, launched = warm_call()
    except (ImportError, DeviceError):
        return
    print(f"warm call                 {called * 1e6:7.1f} us, bare launch {launched * 1e6:.1f} us")


if __name__ == "__main__":
    main()
