"""Which kernel is chosen from what is known, and what results are filed under."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from tuning_records import a_run, a_trial, write_lines

from convgen.bench.choices import best_of
from convgen.errors import NotApplicableError, UsageError
from convgen.lowering import applicable, lower
from convgen.measure import PROTOCOL
from convgen.problem import Attention, Conv
from convgen.render import render
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target
from convgen.tuner.builder import program_key
from convgen.tuner.decide import decide, known, ranked
from convgen.tuner.keys import codegen_hash, task_of, toolchains
from convgen.tuner.neighbours import distance
from tuning_db import Layers, Shipped, Toolchain, Trial, open_database

H200 = Target.preset("h200")
LAYER = Conv.parse("conv2d n=32 c=64 k=64 in=56x56 filter=3x3 pad=1")
DIRECT = get_strategy("direct")


@pytest.fixture
def layers() -> Layers:
    return Layers(open_database(":memory:"))


def _trial_of(
    problem: Conv, strategy: Strategy, seconds: float = 1e-4, target: Target = H200, **config: object
) -> Trial:
    chosen = dataclasses.replace(strategy.default(problem, target), **config)
    strategy.check(problem, chosen, target)
    return a_trial(
        seconds,
        task_of(problem, target),
        strategy=strategy.name,
        config=chosen.as_dict(),
        toolchain=toolchains()[strategy.name],
    )


def test_without_a_database_the_cost_model_decides() -> None:
    for layers in (None, Layers()):
        chosen = decide(LAYER, H200, layers)
        assert chosen.origin == "predicted"
        assert chosen.strategy is applicable(LAYER, H200)[0]
        assert chosen.config == chosen.strategy.default(LAYER, H200)


def test_a_winner_of_this_very_problem_is_taken(layers: Layers) -> None:
    layers.record([_trial_of(LAYER, DIRECT, tile_channel=2)])
    chosen = decide(LAYER, H200, layers)
    assert (chosen.origin, chosen.strategy) == ("tuned", DIRECT)
    assert chosen.config.as_dict()["tile_channel"] == 2
    assert "100 µs" in chosen.sentence()


def test_a_winner_by_older_code_is_taken_too_and_says_so(layers: Layers) -> None:
    layers.record([dataclasses.replace(_trial_of(LAYER, DIRECT), toolchain=Toolchain("old", "NVRTC 1.0", 1))])
    chosen = decide(LAYER, H200, layers)
    assert chosen.origin == "stale"
    assert "changed since" in chosen.sentence()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"outcome": "finished"}, "tuned"),
        ({"outcome": "interrupted"}, "unfinished"),
        ({"outcome": "running"}, "unfinished"),
        ({"outcome": "finished", "settings": {"strategies": ["direct"]}}, "unfinished"),
        ({"outcome": "finished", "settings": {"strategies": "everything"}}, "unfinished"),
        ({"outcome": "finished", "settings": {}}, "unfinished"),
    ],
)
def test_a_winner_answers_for_the_strategies_that_a_finished_search_tried(
    layers: Layers, changes: dict[str, Any], expected: str
) -> None:
    winner = _trial_of(LAYER, DIRECT, tile_channel=2)
    layers.record([winner])
    everything = [s.name for s in applicable(LAYER, H200)]
    layers.record_run(a_run(task=winner.task, **{"settings": {"strategies": everything}, **changes}))
    chosen = decide(LAYER, H200, layers)
    assert (chosen.origin, chosen.config.as_dict()) == (expected, winner.config)
    assert ("not finished or left out" in chosen.sentence()) is (expected == "unfinished")


def test_an_earlier_finished_search_answers_as_long_as_it_was_of_the_same_code(layers: Layers) -> None:
    task, everything = task_of(LAYER, H200), [s.name for s in applicable(LAYER, H200)]
    for name, outcome in (("first", "finished"), ("second", "interrupted")):
        layers.record_run(a_run(id=name, task=task, outcome=outcome, settings={"strategies": everything}))
    layers.record([dataclasses.replace(_trial_of(LAYER, DIRECT, 1e-5, tile_channel=2), run="second")])
    slower = dataclasses.replace(_trial_of(LAYER, DIRECT, 2e-5), run="first")
    layers.record([dataclasses.replace(slower, toolchain=Toolchain("old", "NVRTC 1.0", 1))])
    assert decide(LAYER, H200, layers).origin == "unfinished"
    layers.record([slower])
    assert decide(LAYER, H200, layers).origin == "tuned"


@pytest.mark.parametrize("layer", ["shared", "shipped"])
@pytest.mark.parametrize(("outcome", "origin"), [("finished", "tuned"), ("interrupted", "unfinished")])
def test_a_winner_of_another_layer_answers_if_its_search_does(
    tmp_path: Path, layer: str, outcome: str, origin: str
) -> None:
    winner = _trial_of(LAYER, DIRECT, tile_channel=2)
    everything = [strategy.name for strategy in applicable(LAYER, H200)]
    run = a_run(task=winner.task, outcome=outcome, settings={"strategies": everything})
    shared = open_database(":memory:")
    shared.merge([winner, run])
    write_lines([winner, run], tmp_path / "winners.jsonl")
    layers = Layers(None, shared) if layer == "shared" else Layers(None, None, Shipped(tmp_path))
    assert decide(LAYER, H200, layers).origin == origin


def test_a_winner_by_older_code_that_made_the_same_program_is_as_good_as_todays(layers: Layers) -> None:
    old = Toolchain("old", toolchains()["direct"].compiler, PROTOCOL)
    plan = lower(LAYER, DIRECT, None, H200)
    key = program_key(plan, render(plan), "cuda")
    layers.record([dataclasses.replace(_trial_of(LAYER, DIRECT), toolchain=old, source_key=key)])
    assert decide(LAYER, H200, layers).origin == "tuned"
    layers.record([dataclasses.replace(_trial_of(LAYER, DIRECT), toolchain=old, source_key="another")])
    assert decide(LAYER, H200, layers).origin == "stale"


def test_the_same_program_by_older_code_wins_over_a_slower_one_by_todays(tmp_path: Path, layers: Layers) -> None:
    """A strategy whose files changed must not lose to one whose files did not: the tier is the program's."""
    slow = _trial_of(LAYER, get_strategy("im2col"), seconds=1e-2)
    old = Toolchain("old", toolchains()["direct"].compiler, PROTOCOL)
    plan = lower(LAYER, DIRECT, None, H200)
    fast = dataclasses.replace(
        _trial_of(LAYER, DIRECT, seconds=1e-4), toolchain=old, source_key=program_key(plan, render(plan), "cuda")
    )
    another = dataclasses.replace(fast, source_key="another")
    write_lines([slow, fast], tmp_path / "winners.jsonl")
    layers.record([slow, fast])
    for place in (layers, Layers(None, None, Shipped(tmp_path))):
        assert decide(LAYER, H200, place).strategy.name == "direct"
    layers.record([another])
    write_lines([slow, another], tmp_path / "winners.jsonl")
    for place in (layers, Layers(None, None, Shipped(tmp_path))):
        assert decide(LAYER, H200, place).strategy.name == "im2col"


def test_a_similar_problems_winner_of_a_strategy_that_is_slow_here_is_passed_over(layers: Layers) -> None:
    small = Conv.parse("conv2d n=2 c=64 k=64 in=16x16 filter=3x3 pad=1 dtype=fp16")
    similar = Conv.parse("conv2d n=16 c=192 k=32 in=28x28 filter=5x5 pad=2 dtype=fp16")
    layers.record([_trial_of(similar, get_strategy("fft"))])
    chosen = decide(small, H200, layers)
    assert (chosen.origin, chosen.strategy) == ("predicted", applicable(small, H200)[0])


def test_a_similar_problems_winner_comes_before_the_cost_model(layers: Layers) -> None:
    near, far = (dataclasses.replace(LAYER, n=n) for n in (16, 1))
    best = applicable(LAYER, H200)[0]
    layers.record([_trial_of(far, DIRECT, tile_channel=1), _trial_of(near, best)])
    chosen = decide(LAYER, H200, layers)
    assert (chosen.origin, chosen.strategy) == ("neighbour", best)
    assert str(near) in chosen.sentence()


@pytest.mark.parametrize(
    "other",
    [
        "conv2d n=32 c=64 k=64 in=56x56 filter=1x1",
        "conv2d n=32 c=64 k=64 in=56x56 filter=3x3 pad=1 dtype=fp16",
        "conv2d n=32 c=64 k=64 in=56x56 filter=3x3 pad=1 layout=nhwc",
        "conv2d n=32 c=64 k=64 in=56x56 filter=3x3 pad=1 direction=wgrad",
        "conv2d n=32 c=64 k=64 groups=64 in=56x56 filter=3x3 pad=1",
        "conv2d n=1 c=2048 k=2048 in=7x7 filter=3x3 pad=1",
    ],
)
def test_a_problem_of_another_kind_or_far_away_says_nothing(layers: Layers, other: str) -> None:
    layers.record([_trial_of(Conv.parse(other), DIRECT)])
    assert decide(LAYER, H200, layers).origin == "predicted"


def test_another_gpus_winner_is_not_taken(layers: Layers) -> None:
    layers.record([_trial_of(LAYER, DIRECT, target=Target.preset("a100"))])
    assert decide(LAYER, H200, layers).origin == "predicted"


@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        ("direct", {"tile_channel": -5}),
        ("direct", {"filter": "'); import os #"}),
        ("direct", {"threads_column": 10**9}),
        ("direct", {"unheard_of": 1}),
    ],
)
def test_an_illegal_config_is_passed_over_with_one_warning(
    layers: Layers, strategy: str, config: dict[str, object]
) -> None:
    whole = {**_trial_of(LAYER, get_strategy(strategy)).config, **config}
    layers.record([dataclasses.replace(_trial_of(LAYER, get_strategy(strategy)), config=whole)])  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="not legal") as told:
        chosen = decide(LAYER, H200, layers)
    assert len(told) == 1
    assert chosen.origin == "predicted"


def test_after_an_illegal_config_the_next_best_of_the_problem_is_taken(layers: Layers) -> None:
    best, worse, next_best = (
        _trial_of(LAYER, DIRECT, 1e-5 * (1 + rank), tile_channel=2 ** (1 + rank)) for rank in range(3)
    )
    for trial, tile in ((best, -5), (worse, -6)):
        layers.record([dataclasses.replace(trial, config={**trial.config, "tile_channel": tile})])
    layers.record([next_best])
    with pytest.warns(UserWarning, match="not legal") as told:
        chosen = decide(LAYER, H200, layers)
    assert len(told) == 1
    assert (chosen.origin, chosen.config.as_dict()) == ("tuned", next_best.config)
    with pytest.warns(UserWarning, match="not legal"):
        assert best_of(DIRECT, LAYER, H200, layers) == chosen


def test_a_strategy_that_is_gone_is_passed_over(layers: Layers) -> None:
    gone = dataclasses.replace(_trial_of(LAYER, DIRECT), strategy="alchemy")
    layers.record([gone])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decide(LAYER, H200, layers).origin == "predicted"


def test_no_strategy_at_all() -> None:
    with pytest.raises(NotApplicableError, match="fp8"):
        decide(Conv.parse("conv2d c=8 k=8 in=8 filter=1 dtype=fp8 direction=dgrad"), H200, None)


def test_a_workspace_limit_passes_over_what_needs_more(layers: Layers) -> None:
    split = _trial_of(Conv.parse(f"{LAYER}"), DIRECT, split_q=4)
    layers.record([split])
    assert decide(LAYER, H200, layers).config.as_dict()["split_q"] == 4
    assert decide(LAYER, H200, layers, workspace_limit=0).origin != "tuned"
    with pytest.raises(UsageError, match=r"workspace_limit=-1.*needs at least 0 bytes"):
        decide(LAYER, H200, layers, workspace_limit=-1)


def test_what_is_known_are_winners_and_no_defaults(layers: Layers) -> None:
    everything = applicable(LAYER, H200)
    assert list(known(LAYER, H200, layers, everything)) == []
    near = dataclasses.replace(LAYER, n=16)
    layers.record([_trial_of(near, everything[0]), _trial_of(LAYER, get_strategy("im2col"))])
    found = [(d.strategy, d.origin) for d in known(LAYER, H200, layers, everything)]
    assert found[:2] == [(get_strategy("im2col"), "tuned"), (everything[0], "neighbour")]
    layers.record([_trial_of(near, DIRECT, seconds=1e-6)])
    assert [d.strategy.name for d in known(LAYER, H200, layers, [DIRECT])] == ["direct"]


def test_every_default_comes_last(layers: Layers) -> None:
    layers.record([_trial_of(LAYER, DIRECT, tile_channel=2)])
    order = list(ranked(LAYER, H200, layers))
    assert order[0].origin == "tuned"
    assert [d.strategy for d in order[1:]] == list(applicable(LAYER, H200))


# --- distance ------------------------------------------------------------------------------------------------


def test_distance_grows_with_every_doubling() -> None:
    def apart(**changes: object) -> float:
        return distance(LAYER, dataclasses.replace(LAYER, **changes))  # type: ignore[arg-type]

    assert apart() == 0
    assert apart(n=64) == pytest.approx(0.5)
    assert apart(n=128) == pytest.approx(1.0)
    assert apart(c=128) == pytest.approx(0.5)
    assert apart(c=128, k=128) == pytest.approx(1.0)
    assert distance(LAYER, dataclasses.replace(LAYER, n=64)) == distance(dataclasses.replace(LAYER, n=64), LAYER)


# --- keys ----------------------------------------------------------------------------------------------------


def test_a_task_names_problem_and_gpu() -> None:
    task = task_of(LAYER, H200, "resnet50")
    assert task.identity == (str(LAYER), "h200", "9.0", 132)
    assert (task.op, task.direction, task.dtype, task.layout, task.family) == (
        "conv2d", "fprop", "fp32", "nchw", "resnet50",
    )  # fmt: skip
    assert task_of(LAYER, H200, simulated=True).device == "sim-h200"


def test_accuracy_and_epilogue_are_part_of_the_key() -> None:
    texts = {str(Conv.parse(f"{LAYER}{more}")) for more in ("", " accuracy=fast", " epilogue=relu", " epilogue=bias")}
    assert len(texts) == 4


def test_a_strategys_hash_depends_on_its_own_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from convgen.tuner import keys

    before = {name: codegen_hash(get_strategy(name)) for name in ("direct", "halo_tiled", "im2col", "cache_halo")}
    assert len(set(before.values())) == 4
    whole = keys.template_files
    edited = tmp_path / "halo_tiled.cu.j2"
    edited.write_text("// edited")

    def with_edit(template: str) -> tuple[Path, ...]:
        return (edited, *whole(template)[1:]) if "halo_tiled" in template else whole(template)

    monkeypatch.setattr(keys, "template_files", with_edit)
    keys._hash_of.cache_clear()
    try:
        after = {name: codegen_hash(get_strategy(name)) for name in before}
    finally:
        keys._hash_of.cache_clear()
    assert {name for name in before if before[name] != after[name]} == {"halo_tiled"}


def test_attentions_are_alike_by_their_sequences_and_of_one_kind_by_all_else() -> None:
    head = Attention.parse("attention heads_q=8 seq_q=1024 head_dim=128 dtype=fp16 causal=top_left")
    longer = dataclasses.replace(head, seq_kv=4096)
    assert 0 < distance(head, longer) < distance(head, dataclasses.replace(longer, seq_q=4096))
    assert distance(head, dataclasses.replace(head, head_dim=64)) == math.inf
    assert distance(head, Attention.parse("attention heads_q=8 seq_q=1024 head_dim=128 dtype=fp16")) == math.inf
    assert distance(head, LAYER) == math.inf
