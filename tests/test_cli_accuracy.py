"""`convgen accuracy`: a line for each algorithm, beside the direct kernel's."""

from __future__ import annotations

import json

import pytest

from convgen.cli import main


def test_the_table_has_a_line_for_each_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--channels", "8"]) == 0
    title, heads, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("3x3, 8 channels;")
    assert heads.split()[:6] == ["algorithm", "points", "dtype", "mult/result", "growth", "bound"]
    assert [line.split()[2] for line in lines[:4]] == ["fp32", "tf32", "fp16", "bf16"]
    # Of F(2x2, 3x3) in fp32: 64/9 times 8 + 10 roundings.
    [line] = [line.split() for line in lines if "0:1:-1 " in line and " fp32 " in line]
    assert line[:7] == ["F(2x2,", "3x3)", "0:1:-1", "fp32", "4", "7.111", "7.6e-06"]


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--channels", "4", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["channels"] for row in rows} == {4}
    assert {row["variant"] for row in rows} == {"direct", "F(2x2, 3x3)", "F(3x3, 3x3)", "F(4x4, 3x3)"}
    for row in rows:
        assert set(row["errors"]) == {"random", "positive", "adversarial"}


def test_no_channels_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["accuracy", "--channels", "0"])
    assert exit_.value.code == 2
    assert "at least 1" in capsys.readouterr().err
