"""What kernels are called: names that a profiler can show."""

from __future__ import annotations

import hashlib

from convgen.problem import BatchNorm, Pool
from convgen.space import Config


def kernel_name(problem: Pool | BatchNorm, what: str, strategy: str, config: Config, part: str = "") -> str:
    """Operation, strategy, sizes, type, layout, and a digest that tells all else apart; `what` is what the sizes leave
    open. Two problems or configs have two names, so that their files and launchers can stand side by side."""
    batch = "any" if problem.is_runtime_batch else str(problem.n)
    extent = f"i{'x'.join(map(str, problem.spatial))}" if problem.spatial else ""
    layout = problem.layout.text(problem.nd) if problem.nd else "nc"
    digest = hashlib.sha256(f"{problem} {strategy} {config}".encode()).hexdigest()[:8]
    name = f"{what}_{strategy}{'_' + part if part else ''}_n{batch}c{problem.c}{extent}"
    return f"{name}_{problem.dtype.value}_{layout}_{digest}"
