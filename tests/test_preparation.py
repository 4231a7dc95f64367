"""Which steps of a plan depend on the weights alone."""

from __future__ import annotations

from collections.abc import Sequence

import hand_plans
import pytest

from convgen.binding import Preparation, preparation
from convgen.lowering import lower
from convgen.plan import (
    Arg,
    Buffer,
    CopyToSymbol,
    Kernel,
    Launch,
    Memset,
    Param,
    Plan,
    ScalarArg,
    SizeArg,
    SizeExtent,
    Step,
    TensorArg,
    TextureArg,
    WorkspaceArg,
    batch_extent,
)
from convgen.problem import Conv
from convgen.strategies import get_strategy
from convgen.target import Target

H200 = Target.preset("h200")
X, W, Y = TensorArg("x"), TensorArg("w"), TensorArg("y")
U, V = WorkspaceArg("u"), WorkspaceArg("v")


def _launch(name: str, reads: Sequence[Arg], writes: Sequence[Arg], blocks: int | SizeExtent = 1) -> Launch:
    params = [Param(f"r{i}", "int" if isinstance(arg, SizeArg | ScalarArg) else "const float*")
              for i, arg in enumerate(reads)]  # fmt: skip
    params += [Param(f"w{i}", "float*") for i in range(len(writes))]
    return Launch(Kernel(name, tuple(params)), (blocks, 1, 1), (32, 1, 1), (*reads, *writes))


def _found(*steps: Step, u: int | SizeExtent = 64) -> Preparation:
    kernels = tuple(step.kernel for step in steps if isinstance(step, Launch))
    return preparation(
        Plan(
            problem=Conv.parse("conv1d n=* c=1 k=1 in=8 filter=3"),
            strategy="by_hand",
            config=hand_plans.HandConfig(),
            target=H200,
            template="none",
            constants={},
            kernels=kernels,
            steps=steps,
            workspace=(Buffer("u", u), Buffer("v", batch_extent(64))),
        )
    )


def test_a_filter_transform_is_prepared() -> None:
    found = _found(
        _launch("transform_filter", [W, ScalarArg(4)], [U]),
        _launch("transform_input", [X], [V], batch_extent(8)),
        _launch("multiply", [U, V], [Y]),
    )
    assert found == Preparation(frozenset({0}), ("u",), constants=False, weights_used_later=False)


def test_a_chain_of_steps_is_prepared_as_a_whole() -> None:
    found = _found(
        Memset(U),
        _launch("sums", [W], [U]),
        CopyToSymbol("filter_constant", U, 64),
        _launch("convolve", [X, W], [Y]),
    )
    assert found == Preparation(frozenset({0, 1, 2}), ("u",), constants=True, weights_used_later=True)


def test_a_buffer_that_a_later_step_writes_is_not_kept() -> None:
    transform = _launch("transform", [W], [U])
    for spoiler in (Memset(U), _launch("again", [X], [U])):
        found = _found(transform, _launch("use", [X, U], [Y]), spoiler)
        assert (found.steps, found.buffers) == (frozenset(), ())
        assert found.weights_used_later


def test_what_hangs_on_a_spoiled_buffer_is_spoiled_too() -> None:
    found = _found(
        _launch("first", [W], [U]), CopyToSymbol("c", U, 64), _launch("use", [X], [Y]), _launch("overwrite", [X], [U])
    )
    assert found == Preparation(frozenset(), (), constants=False, weights_used_later=True)


@pytest.mark.parametrize("reads", [[W, X], [W, SizeArg("n")], [W, TextureArg("x", 8, 1, 32)], [W, V]])
def test_what_reads_anything_else_is_not_prepared(reads: list[Arg]) -> None:
    assert not _found(_launch("transform", reads, [U]), _launch("use", [X, U], [Y])).steps


def test_what_depends_on_the_batch_is_not_prepared() -> None:
    use = _launch("use", [X, U], [Y])
    assert not _found(_launch("transform", [W], [U], batch_extent(1)), use).steps
    assert not _found(_launch("transform", [W], [U]), use, u=batch_extent(64)).steps


def test_symbols_are_prepared_together_and_before_their_first_use() -> None:
    first, second = CopyToSymbol("a", W, 4), CopyToSymbol("b", W, 4)
    use = _launch("use", [X], [Y])
    assert _found(first, second, use).steps == {0, 1}
    assert not _found(first, use, second).steps
    assert not _found(first, CopyToSymbol("b", X, 4), use).steps


def test_an_output_filled_from_the_weights_is_not_kept() -> None:
    assert not _found(Memset(Y), _launch("use", [W], [Y])).steps


def test_a_constant_filter_of_a_strategy() -> None:
    problem = Conv.parse("conv2d n=1 c=1 k=1 in=32 filter=3")
    strategy = get_strategy("direct")
    default = strategy.default(problem, H200)
    for home, expected in (("constant", ({0}, True, False)), ("global", (set(), False, True))):
        found = preparation(lower(problem, strategy, type(default).from_mapping({"filter": home}, default), H200))
        assert (set(found.steps), found.constants, found.weights_used_later) == expected
