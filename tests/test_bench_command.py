"""`convgen bench`: what it prints, what it keeps, where it goes on, and its exit status."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_entries import META, entry, results
from fake_venue import TARGET, StandIn

from convgen import cli
from convgen.bench.results import Entry, load, save
from convgen.cli import bench_command
from convgen.errors import DeviceError
from convgen.target import Target

SMALL = ["conv2d", "n=2", "c=4", "in=12x12", "k=8", "filter=3x3", "pad=1"]
SUITE = [
    {"id": "first", "family": "a", "op": "conv", "nd": 2, "n": 1, "c": 4, "k": 4, "in": [8, 8], "filter": [3, 3],
     "dtypes": ["fp32", "fp16"], "layouts": ["NCHW"], "passes": ["fwd"]},
    {"id": "second", "family": "b", "op": "conv", "nd": 2, "n": 1, "c": 4, "k": 4, "in": [8, 8], "filter": [1, 1],
     "dtypes": ["fp8"], "layouts": ["NHWC"], "passes": ["dgrad"]},
]  # fmt: skip


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    monkeypatch.setattr(Target, "current", classmethod(lambda cls, device=None: TARGET))
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    return StandIn(monkeypatch)


@pytest.fixture
def suite(tmp_path: Path) -> str:
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    return str(tmp_path / "suite.json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["bench", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# --- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        ([], 2, ["--suite"]),
        ([*SMALL, "--suite", "textbook"], 2, ["--suite"]),
        ([*SMALL, "--against", "mkl"], 2, ["mkl", "cudnn"]),
        ([*SMALL, "--against", "none,cudnn"], 2, ["none alone"]),
        ([*SMALL, "--shard", "3/2"], 2, ["3/2", "I/N"]),
        ([*SMALL, "--shard", "0/2"], 2, ["0/2"]),
        ([*SMALL, "--strategy", "magic"], 2, ["magic", "direct"]),
        (["--suite", "textbook", "--strategy", "all"], 2, ["one problem"]),
        ([*SMALL, "--strategy", "all", "--plot", "x.png"], 2, ["--plot"]),
        ([*SMALL, "--merge", "a.json"], 2, ["--merge"]),
        (["--merge", "nowhere.json"], 2, ["nowhere.json"]),
    ],
)
def test_an_error_has_its_status_and_names_what_is_wrong(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, named: list[str]
) -> None:
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (status, "")
    assert all(word in err for word in named), err


def test_fewer_than_seven_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", *SMALL, "--rounds", "6"])
    assert exit_.value.code == 2


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(cls: Any, device: Any = None) -> Target:
        raise DeviceError("no usable GPU: no CUDA-capable device is detected")

    monkeypatch.setattr(Target, "current", classmethod(absent))
    status, out, err = run(capsys, *SMALL)
    assert (status, out) == (6, "")
    assert err == "convgen: bench times kernels on a GPU: no usable GPU: no CUDA-capable device is detected\n"


# --- one problem, a suite ---------------------------------------------------------------------------------------


def test_one_problem_is_printed_with_its_times(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.seconds = {"direct": 20e-6, "im2col": 20e-6}
    status, out, err = run(capsys, *SMALL, "--against", "none")
    assert status == 0
    assert "20.0" in out
    assert "NVIDIA Stand-in" in out
    assert err.startswith("[1/1] conv2d n=2 c=4 k=8 in=12x12")


def test_without_pytorch_it_goes_on_and_says_so(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    status, _, err = run(capsys, *SMALL)
    assert status == 0
    assert err.startswith("PyTorch is not installed, so the peers are left out\n")


def test_json_is_the_document_of_the_file(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    status, out, _ = run(capsys, "--suite", suite, "--against", "none", "-o", str(path), "--json")
    assert status == 0
    document = json.loads(out)
    assert document == json.loads(path.read_text())
    assert [(e["id"], e["dtype"]) for e in document["entries"]] == [
        ("first", "fp32"),
        ("first", "fp16"),
        ("second", "fp8"),
    ]
    assert document["meta"]["suite"] == suite
    assert document["meta"]["clocks"] == {"sm_mhz": [1980.0, 1980.0], "celsius": [40.0, 40.0]}
    assert document["entries"][2]["reason"].startswith("no strategy applies")


def test_nothing_covered_is_status_3_and_a_wrong_answer_5(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    status, out, _ = run(capsys, "--suite", suite, "--against", "none", "--where", "id=second")
    assert status == 3
    assert "1 of 1 problems not measured" in out
    stand_in.wrong = {"direct", "im2col", "halo_tiled", "cache_halo"}
    status, out, err = run(capsys, "--suite", suite, "--against", "none")
    assert status == 5
    assert "elements wrong" in err


def test_the_report_and_the_plot_are_written(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    files = ["--markdown", str(tmp_path / "r.md"), "--plot", str(tmp_path / "r.png")]
    assert run(capsys, "--suite", suite, "--against", "none", *files)[0] == 0
    assert "| first | fp32 |" in (tmp_path / "r.md").read_text()
    assert (tmp_path / "r.png").stat().st_size > 10_000


# --- going on ------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_ended(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "r.json")
    common = ["--suite", suite, "--against", "none", "-o", path]
    status, _, err = run(capsys, *common, "--time-limit", "0")
    assert status == 0
    assert "time is up: 2 problems are left" in err
    assert len(load(Path(path)).entries) == 1
    status, _, err = run(capsys, *common)
    assert status == 0
    assert "1 of 3 problems are in" in err
    assert "[1/2] first fp16" in err
    assert len(load(Path(path)).entries) == 3
    _, _, err = run(capsys, *common, "--restart")
    assert "[1/3]" in err


def test_a_killed_run_keeps_what_it_has(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convgen.bench.session import Bench

    def interrupted(self: Bench, entries: Sequence[Any]) -> Iterator[Entry]:
        yield dataclasses.replace(entry("first", 1.5), layout="nchw")
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "run", interrupted)
    path = tmp_path / "r.json"
    assert run(capsys, "--suite", suite, "--against", "none", "-o", str(path))[0] == 130
    assert [e.id for e in load(path).entries] == ["first"]


def test_a_file_from_another_gpu_is_not_mixed_with(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str, tmp_path: Path
) -> None:
    save(tmp_path / "r.json", results(entry("first", 1.5)))
    status, _, err = run(capsys, "--suite", suite, "--against", "none", "-o", str(tmp_path / "r.json"))
    assert status == 2
    assert "NVIDIA H200 and NVIDIA Stand-in" in err
    assert "--restart" in err


def test_shards_cover_the_suite_once_and_merge_into_it(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], suite: str, tmp_path: Path
) -> None:
    files = [str(tmp_path / f"{i}.json") for i in (1, 2)]
    for i, file in enumerate(files, start=1):
        run(capsys, "--suite", suite, "--against", "none", "--shard", f"{i}/2", "-o", file)
    merged = str(tmp_path / "all.json")
    status, out, _ = run(capsys, "--merge", *files, "-o", merged)
    assert status == 0
    assert {(e.id, e.dtype) for e in load(Path(merged)).entries} == {
        ("first", "fp32"),
        ("first", "fp16"),
        ("second", "fp8"),
    }
    assert "family" in out


# --- the ladder ----------------------------------------------------------------------------------------------


def test_the_ladder_is_printed_from_the_naive_kernel_up(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from convgen.bench.ladder import NAIVE, candidates
    from convgen.problem import Conv

    naive = candidates(Conv.parse(" ".join(SMALL)), TARGET, None)[NAIVE]
    stand_in.seconds = {("direct", str(naive.config)): 90e-6, "direct": 30e-6}
    status, out, _ = run(capsys, *SMALL, "--strategy", "all", "--against", "none", "-o", str(tmp_path / "l.json"))
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    first = next(i for i, words in enumerate(lines) if words[:1] == ["naive"])
    assert lines[first][2] == "1.00"
    direct = next(words for words in lines if words[:2] == ["direct,", "untuned"])
    assert float(direct[3]) == pytest.approx(3.0, rel=1e-2)
    saved = json.loads((tmp_path / "l.json").read_text())
    assert saved["ladder"][0]["name"] == "naive"
    assert set(saved["meta"]) >= {"gpu", "attainable"}
    status, out, _ = run(capsys, *SMALL, "--strategy", "all", "--against", "none", "--json")
    assert json.loads(out)["ladder"][0]["name"] == "naive"


def test_a_wrong_rung_is_status_5(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.wrong = {"im2col"}
    status, out, _ = run(capsys, *SMALL, "--strategy", "all", "--against", "none")
    assert status == 5
    assert "elements wrong" in out


def test_ours_can_be_one_strategys(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *SMALL, "--strategy", "im2col", "--against", "none", "--json")
    assert json.loads(out)["entries"][0]["strategy"] == "im2col"


def test_extremes_of_the_clocks() -> None:
    reading = {"sm_mhz": 1980.0}
    assert bench_command._extremes(
        [{"before": None, "after": reading}, {"before": {"sm_mhz": 345.0}, "after": None}]
    ) == {"sm_mhz": [345.0, 1980.0]}
    assert bench_command._extremes([]) is None
    assert META["clocks"] is None
