"""What kernels take: each parameter beside what it is bound to, so that the two lists cannot drift apart."""

from __future__ import annotations

from convgen.gather import Gather
from convgen.plan import Arg, CopyToSymbol, Extent, Kernel, Launch, Param, SizeArg, TensorArg
from convgen.problem import Conv

Operand = tuple[Param, Arg]


def launch(
    name: str,
    operands: tuple[Operand, ...],
    grid: tuple[Extent, Extent, Extent],
    block: tuple[int, int, int],
    shared_bytes: int = 0,
    cluster: tuple[int, int, int] = (1, 1, 1),
    is_early: bool = False,
) -> Launch:
    """The launch of a kernel of that name which takes the operands in this order."""
    kernel = Kernel(name, tuple(param for param, _ in operands))
    return Launch(kernel, grid, block, tuple(arg for _, arg in operands), shared_bytes, cluster, is_early)


def x(g: Gather) -> Operand:
    return Param("x", f"const {g.x.dtype.ctype}*"), TensorArg(g.x.name)


def w(g: Gather) -> Operand:
    return Param("w", f"const {g.w.dtype.ctype}*"), TensorArg(g.w.name)


def y(g: Gather) -> Operand:
    return Param("y", f"{g.y.dtype.ctype}*"), TensorArg(g.y.name)


def placed_filter(g: Gather, home: str) -> tuple[Operand, ...]:
    """The filter's pointer; nothing if its home is constant memory, which needs none."""
    return () if home == "constant" else (w(g),)


def filter_copy(g: Gather, home: str) -> tuple[CopyToSymbol, ...]:
    """The step that fills constant memory if that is the filter's home."""
    return (CopyToSymbol("filter_constant", TensorArg(g.w.name), g.w.nbytes),) if home == "constant" else ()


def epilogue(problem: Conv) -> tuple[Operand, ...]:
    """The epilogue's pointers, in the order it applies them."""
    return tuple(
        (Param(name, f"const {problem.tensor(name).dtype.ctype}*"), TensorArg(name))
        for name in problem.epilogue.operands
    )


def runtime_batch(g: Gather) -> tuple[Operand, ...]:
    """The batch under the name of its role, if it is known at run time only."""
    if g.batch is None:
        return ((Param("batch", "int"), SizeArg("n")),)
    if g.q is None:
        return ((Param("reduction", "int"), SizeArg("n")),)
    return ()
