"""The suites that ship: every entry loads, reads back equal, and agrees with the numbers that its file lists."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from convgen.errors import ProblemError, UsageError
from convgen.problem import (
    Attention,
    Conv,
    Direction,
    DType,
    Pool,
    expand_entry,
    load_suite,
    parse_problem,
    problem_from_json,
    shipped_suites,
)

ENTRIES = {
    "attention_bench": 33,
    "attention_shapes_public": 235,
    "conv_bench": 66,
    "conv_shapes_public": 592,
    "layers_bench": 22,
    "textbook": 15,
}


def test_the_suites_that_ship() -> None:
    assert shipped_suites() == tuple(sorted(ENTRIES))


@pytest.mark.parametrize(("name", "count"), ENTRIES.items())
def test_every_entry_agrees_with_its_file(name: str, count: int) -> None:
    entries = load_suite(name)
    assert len({entry.id for entry in entries}) == count
    for entry in entries:
        problem = entry.problem
        assert parse_problem(str(problem)) == problem, entry.id
        assert problem_from_json(problem.to_json()) == problem, entry.id
        if problem.direction is not Direction.BPROP:
            assert problem.macs == entry.extras["macs"], entry.id
        if isinstance(problem, Conv | Pool):
            assert list(problem.out) == entry.extras["out"], entry.id
        if problem.direction is Direction.FPROP and problem.dtype == "fp16" and "bytes_fp16" in entry.extras:
            assert problem.bytes == entry.extras["bytes_fp16"], entry.id
            assert problem.flops == entry.extras["flops_fwd"], entry.id


def test_an_entry_expands_into_its_product() -> None:
    entry = {"op": "conv", "nd": 1, "c": 1, "in": [4], "k": 1, "filter": [1], "id": "small", "tags": ["tiny"]}
    lists = {"dtypes": ["fp16", "bf16"], "passes": ["fwd", "wgrad"], "layouts": ["NCL", "NHWC"]}
    expanded = expand_entry(entry | lists)
    assert len(expanded) == 8
    assert {str(e.problem) for e in expanded} == {
        f"conv1d n=1 c=1 k=1 in=4 filter=1 dtype={dtype}{layout}{direction}"
        for dtype in ("fp16", "bf16")
        for layout in ("", " layout=nlc")
        for direction in ("", " direction=wgrad")
    }
    assert {(e.id, e.family, len(e.extras["tags"])) for e in expanded} == {("small", "", 1)}


def test_lists_can_be_replaced() -> None:
    entries = load_suite("textbook.json", dtypes=["bf16"], passes=["fwd", "dgrad", "wgrad"], layouts=["NHWC"])
    convs = [entry.problem for entry in entries if isinstance(entry.problem, Conv)]
    assert len(convs) == 13 * 3
    assert {conv.dtype for conv in convs} == {"bf16"}
    assert {conv.direction for conv in convs} == {"fprop", "dgrad", "wgrad"}
    attentions = [entry.problem for entry in entries if isinstance(entry.problem, Attention)]
    assert {attention.dtype for attention in attentions} == {"bf16"}


def test_a_scale_that_is_stated_in_prose() -> None:
    scales = {e.id: e.problem.scale for e in load_suite("attention_shapes_public") if isinstance(e.problem, Attention)}
    assert scales["other-b8h12q512d64-t5_rel_pos"] == 1.0
    assert scales["llama-b32h64kv8q1k2048d128-causal"] == pytest.approx(128**-0.5)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps([{"op": "attention", "heads_q": 2, "seq_q": 3, "head_dim": 4, "passes": ["fwd", "bwd"]}])
    )
    assert [entry.problem.direction for entry in load_suite(file)] == ["fprop", "bprop"]


GOOD: dict[str, Any] = {"op": "conv", "nd": 1, "c": 1, "in": [4], "k": 1, "filter": [1]}


BAD_ENTRIES: list[dict[str, Any]] = [
    {"c": -1},
    {"dtypes": "fp16"},
    {"dtypes": []},
    {"dtypes": [["fp16"]]},
    {"passes": [None]},
    {"layouts": {"NCL": 1}},
    {"id": 3},
    {"family": ["x"]},
    {"op": {}},
    {"id": "x" * 10**6, "k": 0.5},
]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe[]",
        b"{}",
        b"[1]",
        b"[[]]",
        b"[" * 100_000,
        b'[{"op": "conv", "op": "conv"}]',
        b'[{"c": ' + b"9" * 100_000 + b"}]",
        *(json.dumps([GOOD | change]).encode() for change in BAD_ENTRIES),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    with pytest.raises((ProblemError, UsageError)) as caught:
        load_suite(file)
    assert len(str(caught.value)) < 800


def test_deeply_nested_extras_are_carried(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text(
        '[{"op": "conv", "nd": 1, "c": 1, "in": [4], "k": 1, "filter": [1], "notes": ' + "[" * 500 + "]" * 500 + "}]"
    )
    assert len(load_suite(file)) == 1


def test_the_message_names_the_entry(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps([GOOD | {"id": "fine"}, GOOD | {"id": "broken", "stride": [0]}]))
    with pytest.raises(ProblemError, match=r"entry broken: stride=0: expected"):
        load_suite(file)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a named pipe"), (Path(os.devnull), "a device")):
        with pytest.raises(UsageError, match=f"it is {kind}; expected a JSON file"):
            load_suite(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    file = tmp_path / "mine.json"
    file.touch()
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(UsageError, match=r"^suite .*: cannot be read \(Permission denied\)"):
        load_suite(file)


@pytest.mark.parametrize("name", ["no_such_suite", "", ".", "/", "a\0b", "\ud800", "x" * 100_000])
def test_a_suite_that_is_not_there(name: str) -> None:
    with pytest.raises(UsageError, match="suite"):
        load_suite(name)


@pytest.mark.parametrize(
    "text",
    ["batch_norm n=4 c=3 in=5 mode=training eps=0.5", "max_pool2d n=2 c=3 in=8x8 filter=3x3 stride=2 ceil_mode=yes"],
)
def test_entries_of_every_kind_keep_all_of_their_keys(text: str) -> None:
    problem = parse_problem(text)
    [entry] = expand_entry(problem.to_json() | {"id": "one", "notes": "carried along"})
    assert entry.problem == problem
    assert entry.extras == {"id": "one", "notes": "carried along"}


def test_given_dtypes_replace_those_of_every_problem_and_directions_those_of_convolutions() -> None:
    attention = load_suite("attention_bench", dtypes=["bf16"], passes=["dgrad"], layouts=["nhwc"])
    assert {entry.problem.dtype for entry in attention} == {DType.BF16}
    assert {entry.problem.direction for entry in attention} == {Direction.FPROP, Direction.BPROP}
    convolutions = load_suite("conv_bench", dtypes=["bf16"], passes=["dgrad"])
    assert {(entry.problem.dtype, entry.problem.direction) for entry in convolutions} == {(DType.BF16, Direction.DGRAD)}
