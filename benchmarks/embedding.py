"""The embedding functions as cudnn.benchmark is usually shown: by default, the first tuned call, and after it.

usage: python benchmarks/embedding.py

Times are of the host's clock around calls that end with a synchronisation, medians of many; cudnn.benchmark is shown
beside it the same way. Untuned asks no database. The tuning database is a temporary one, but below it are the winners
that ship: where one is known, nothing is searched. A second process is asked as well.
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

SHAPES = {"x": (32, 144, 56, 56), "w": (144, 1, 3, 3)}
OPTIONS: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 144}


def once(call: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start


def warm(call: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    for _ in range(10):
        call()
    return statistics.median(once(call, synchronize) for _ in range(200))


def show(mode: str) -> None:
    import torch

    import convgen

    x = torch.randn(SHAPES["x"], device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(SHAPES["w"], device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    synchronize = torch.cuda.synchronize

    def ours() -> Any:
        return convgen.conv2d(x, w, **OPTIONS)

    def peer() -> Any:
        return torch.nn.functional.conv2d(x, w, **OPTIONS)

    if mode == "again":
        print(f"convgen, another process        first call {once(ours, synchronize) * 1e3:9.1f} ms")
        print(f"convgen, another process, after            {warm(ours, synchronize) * 1e6:9.1f} us")
        return
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        first = once(peer, synchronize)
        print(f"cudnn.benchmark={benchmark!s:5}           first call {first * 1e3:9.1f} ms")
        print(f"cudnn.benchmark={benchmark!s:5}, after               {warm(peer, synchronize) * 1e6:9.1f} us")
    with convgen.tuning("never"):
        print(f"convgen, untuned                first call {once(ours, synchronize) * 1e3:9.1f} ms")
        print(f"convgen, untuned, after                    {warm(ours, synchronize) * 1e6:9.1f} us")
    with convgen.tuning("on_miss", time_limit=10.0):
        print(f"convgen, tuned                  first call {once(ours, synchronize) * 1e3:9.1f} ms")
        print(f"convgen, tuned, after                      {warm(ours, synchronize) * 1e6:9.1f} us")


def main() -> None:
    if len(sys.argv) > 1:
        show(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CONVGEN_TUNING_DB": os.path.join(folder, "tuning.sqlite")}
        for mode in ("first", "again"):
            subprocess.run([sys.executable, __file__, mode], env=environment, check=True)


if __name__ == "__main__":
    main()
