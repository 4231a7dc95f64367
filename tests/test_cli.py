"""The command line: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conv_strategies import CONV_STRATEGIES
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import cli
from convgen.cli import explain_command, output
from convgen.cli.selection import select, stratified
from convgen.compiler import nvrtc_version
from convgen.errors import DeviceError, UsageError
from convgen.plan import Plan
from convgen.problem import load_suite
from convgen.reference import convolution
from convgen.render import render
from convgen.strategies import all_strategies
from convgen.target import presets
from convgen.verify import sim
from convgen.verify.batch import GROUP

SMALL = ["conv2d", "n=2", "c=4", "in=7x6", "k=4", "filter=3x3", "pad=1"]
H200 = ["--target", "h200"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a command in this process."""
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def json_lines(text: str) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


# --- usage and errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["explain", "conv2d", "c=4", "k=4", "in=8", "filter=3", "pad=-1"], 2, ["pad=-1", "at least 0"]),
        (["explain", "conv2d", "c=4", "k=4", "in=8", "filter=3", "colour=red"], 2, ["colour=red"]),
        (["explain", *SMALL, "--target", "h9000"], 2, ["h9000", "h200"]),
        (["explain", *SMALL, "--arch", "sm_1"], 2, ["sm_1", "sm_90a"]),
        (["compile", *SMALL, *H200, "--strategy", "magic"], 2, ["magic", "direct"]),
        (["compile", *SMALL, *H200, "--emit", "cu,exe"], 2, ["exe", "cubin"]),
        (["compile", *SMALL, *H200, "--emit", ""], 2, ["--emit", "cubin"]),
        (["compile", *SMALL, *H200, "--strategy", ""], 2, ["direct"]),
        (["verify", "--suite", ""], 2, ["suite ''", "textbook"]),
        (["verify", "--suite", "/"], 2, ["suite /", "a folder"]),
        (["verify", *SMALL, *H200, "--dtypes", "int32"], 2, ["int32", "fp32"]),
        (["explain", *SMALL, *H200, "direction=wgrad", "epilogue=bias+relu"], 2, ["epilogue=bias+relu", "none"]),
        (["compile", *SMALL, *H200, "--strategy", "direct", "--config", "split_q=a"], 2, ["split_q=a", "integer"]),
        (["compile", *SMALL, *H200, "--strategy", "direct", "--config", "split_q=0"], 2, ["split_q=0", "at least 1"]),
        (["verify", *SMALL, *H200, "--strategy", "direct", "--config", "split_q=0"], 2, ["split_q=0", "at least 1"]),
        (["explain", "conv4d", "c=1"], 2, ["op=conv4d", "conv2d", "max_pool3d", "batch_norm", "attention"]),
        (["explain", '{"op": "conv4d", "c": 1}'], 2, ["op=conv4d", "conv2d", "max_pool3d", "batch_norm", "attention"]),
        (
            ["compile", *SMALL, *H200, "--strategy", "flash_attention"],
            3,
            ["flash_attention", "it solves attention, not conv2d"],
        ),
        (["compile", *SMALL, *H200, "dtype=fp8", "direction=dgrad"], 3, ["dtype=fp8", "direct"]),
        (["compile", *SMALL, *H200, "dtype=fp8", "--strategy", "direct"], 3, ["dtype=fp8"]),
        (
            ["compile", "attention", "batch=1", "heads_q=1", "seq_q=4", "head_dim=8", "dtype=fp8", *H200],
            3,
            ["dtype=fp8"],
        ),
        (["verify"], 2, ["--suite"]),
        (["verify", *SMALL, "--suite", "textbook"], 2, ["--suite"]),
        (["verify", "--suite", "nowhere.json"], 2, ["nowhere.json", "textbook"]),
        (["verify", "--suite", "textbook", "--where", "family"], 2, ["key=value"]),
        (["verify", "--suite", "textbook", "--max-macs", "1"], 2, ["--max-macs"]),
        (["verify", *SMALL, *H200, "--config", "split_q=2"], 2, ["--config", "--strategy"]),
        (["verify", *SMALL, *H200, "--directions", "sideways"], 2, ["sideways", "wgrad"]),
    ],
)
def test_an_error_has_its_status_and_names_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, named: list[str]
) -> None:
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (status, "")
    assert "Traceback" not in err
    assert err.startswith("convgen: ")
    for word in named:
        assert word in err


def test_the_words_of_a_problem_go_on_after_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", *SMALL, "--json", "dtype=bf16", *H200, "direction=dgrad")
    assert json_lines(out)[0]["problem"] == "conv2d n=2 c=4 k=4 in=7x6 filter=3x3 pad=1 dtype=bf16 direction=dgrad"


def test_bad_options_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["fly"],
        ["list", "nothing"],
        ["explain", *SMALL, "--fast"],
        ["list", "targets", "a=b"],
        ["explain", *SMALL, "--target", "h200", "--arch", "sm_86"],
        ["verify", *SMALL, "--seed", "-1"],
        ["verify", *SMALL, "--jobs", "0"],
        ["verify", *SMALL, "--sample", "0"],
        ["verify", *SMALL, "--max-macs", "-1"],
        ["verify", *SMALL, "--max-macs", "nan"],
        ["verify", *SMALL, "--max-macs", "inf"],
        ["compile", *SMALL, "-o", ""],
        ["compile", *SMALL, "-o", "/nowhere/kernel"],
        ["db", "export", "/nowhere/x.jsonl"],
        *(["bench", *SMALL, option, "/nowhere/x"] for option in ("-o", "--markdown", "--plot")),
    ):
        with pytest.raises(SystemExit) as exit_:
            cli.main(arguments)
        assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4))
def test_no_nonsense_gives_a_traceback(words: list[str]) -> None:
    try:
        status = cli.main(["explain", *H200, *words])
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    assert status in (0, 2, 3)


def test_an_unexpected_error_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(explain_command, "explain_problem", break_down)
    status, _, err = run(capsys, "explain", *SMALL, *H200)
    assert status == 1
    assert err.count("\n") == 1
    assert "ZeroDivisionError" in err
    assert "--debug" in err
    status, _, err = run(capsys, "explain", *SMALL, *H200, "--debug")
    assert status == 1
    assert "Traceback" in err


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain_command, "explain_problem", interrupt)
    assert run(capsys, "explain", *SMALL, *H200) == (130, "", "interrupted\n")


# --- list, explain, doctor --------------------------------------------------------------------------------


def test_an_interrupt_before_the_command_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("convgen.cli.parser.parse", interrupt)
    assert run(capsys, "list", "targets") == (130, "", "interrupted\n")


def test_list_names_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for what, names in (
        ("strategies", [s.name for s in all_strategies()]),
        ("targets", list(presets())),
        (
            "suites",
            [
                "attention_bench",
                "attention_shapes_public",
                "conv_bench",
                "conv_shapes_public",
                "layers_bench",
                "textbook",
            ],
        ),
    ):
        status, out, err = run(capsys, "list", what)
        assert (status, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()] == names
        _, out, _ = run(capsys, "list", what, "--json")
        assert [entry["name"] for entry in json_lines(out)] == names


def test_list_counts_the_problems_of_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "list", "suites", "--json")
    counts = {entry["name"]: (entry["entries"], entry["problems"]) for entry in json_lines(out)}
    # conv_bench lists 66 shapes, each in several dtypes, directions and layouts.
    assert counts["conv_shapes_public"] == (592, 592)
    assert counts["conv_bench"][0] == 66 < counts["conv_bench"][1]
    assert counts["layers_bench"] == (22, 22)


def test_json_problems_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    entry = '{"op": "conv", "nd": 1, "c": 2, "k": 3, "in": [9], "filter": [3]}'
    _, out, _ = run(capsys, "explain", entry, *H200, "--json")
    assert json_lines(out)[0]["problem"] == "conv1d n=1 c=2 k=3 in=9 filter=3"


def test_doctor_finds_what_the_tests_run_with(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json_lines(out)}
    assert findings["numpy"]["found"]
    assert findings["templates"]["found"]
    assert findings["suites"]["found"]
    assert status == (0 if findings["NVRTC"]["found"] and findings["CUDA headers"]["found"] else 6)
    assert all(finding["found"] or finding["mend"] for finding in findings.values())


def test_doctor_says_how_to_mend_a_missing_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> tuple[int, int]:
        raise DeviceError("NVRTC is not installed")

    monkeypatch.setattr("convgen.doctor.nvrtc_version", missing)
    status, out, _ = run(capsys, "doctor")
    assert status == 6
    assert re.search(r"^-- +NVRTC +NVRTC is not installed", out, re.MULTILINE)
    assert "pip install 'convgen[cuda13]'" in out


def test_doctor_says_what_is_lost_without_pyelftools(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "pyelftools":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    _, out, _ = run(capsys, "doctor")
    assert re.search(r"^-- +pyelftools +not installed: .*no source lines$", out, re.MULTILINE)
    assert re.search(r"^ +pyelftools +to locate +pip install 'convgen\[sim\]'$", out, re.MULTILINE)


# --- verify ------------------------------------------------------------------------------------------------

VERIFY_KEYS = {"problem", "direction", "strategy", "config", "backend", "status", "reason", "max_error", "bound"}
SIM = ["--backend", "sim", "--jobs", "1", *H200]


def planted(monkeypatch: pytest.MonkeyPatch, strategy: str, change: Callable[[str], str]) -> None:
    """Change the source of one strategy's kernels behind the renderer's back."""

    def changed(plan: Plan) -> str:
        return change(render(plan)) if plan.strategy == strategy else render(plan)

    monkeypatch.setattr(sim, "render", changed)


def test_verify_prints_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "verify", *SMALL, *SIM, "--directions", "fprop,wgrad", "--json")
    results = json_lines(out)
    assert status == 0
    assert len(results) == 2 * len(CONV_STRATEGIES)
    assert {r["direction"] for r in results} == {"fprop", "wgrad"}
    for result in results:
        assert result.keys() >= VERIFY_KEYS | {"id", "dtype"}
        assert result["status"] in ("ok", "not_applicable")
        if result["status"] == "ok":
            assert 0 <= result["max_error"] <= result["bound"]
            assert result["coverage"] == 1
            assert result["sanitized"]
            assert isinstance(result["config"], dict)
        else:
            assert result["reason"]


def test_verify_takes_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, *SIM, "--strategy", "direct", "--config", "threads_column=64,split_q=2", "--json"]
    status, out, _ = run(capsys, "verify", *arguments)
    [result] = json_lines(out)
    assert status == 0
    assert (result["config"]["threads_column"], result["config"]["split_q"]) == (64, 2)


def test_a_wrong_answer_exits_with_5(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = convolution.reference
    monkeypatch.setattr(convolution, "reference", lambda *a: {name: y + 1 for name, y in right(*a).items()})
    status, out, _ = run(capsys, "verify", *SMALL, *SIM, "--strategy", "direct", "--json")
    [result] = json_lines(out)
    assert (status, result["status"]) == (5, "wrong")
    assert "elements wrong" in result["reason"]
    assert result["max_error"] == pytest.approx(1, abs=1e-3)


def test_a_fault_makes_a_result_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = r"\1 if (threadIdx.x == 0) __syncthreads();"
    planted(monkeypatch, "direct", lambda source: re.sub(r"(__global__[^{;]*\{)", barrier, source))
    status, out, _ = run(capsys, "verify", *SMALL, *SIM, "--strategy", "direct", "--json")
    [result] = json_lines(out)
    assert (status, result["status"]) == (5, "wrong")
    assert "divergent barrier" in result["reason"]


def test_one_source_that_is_refused_fails_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, "direct", lambda source: source + "\nint 3;\n")
    status, out, _ = run(capsys, "verify", *SMALL, *SIM, "--json")
    results = {result["strategy"]: result for result in json_lines(out)}
    assert status == 4
    assert results.pop("direct")["status"] == "failed"
    assert {result["status"] for result in results.values()} - {"not_applicable"} == {"ok"}


def test_nothing_applicable_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "verify", *SMALL, "dtype=fp8", "direction=dgrad", *SIM)
    assert status == 3
    assert out.count("not applicable") == len(CONV_STRATEGIES)


def test_a_suite_ends_with_a_table_by_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--suite", "textbook", "--max-macs", "1e4", "--dtypes", "fp32,fp16", *SIM]
    status, out, _ = run(capsys, "verify", *arguments)
    rows = [line.split() for line in out.splitlines()]
    assert status == 0
    assert rows[0] == ["strategy", "ok", "wrong", "not", "applicable", "failed", "time"]
    assert [row[0] for row in rows[1:]] == [*(s.name for s in CONV_STRATEGIES), "all"]
    _, out, _ = run(capsys, "verify", *arguments, "--json")
    results = json_lines(out)
    assert int(rows[-1][1]) == sum(result["status"] == "ok" for result in results)
    assert {result["dtype"] for result in results} == {"fp32", "fp16"}
    assert all(result["id"].startswith("textbook-") for result in results)


def test_several_processes_give_the_same_results(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--suite", "conv_shapes_public", "--max-macs", "3e4", "--strategy", "direct", "--json"]
    arguments += ["--directions", "fprop,dgrad,wgrad", "--dtypes", "fp32,bf16", "--backend", "sim", *H200]

    def outcomes(jobs: str) -> list[tuple[Any, ...]]:
        _, out, _ = run(capsys, "verify", *arguments, "--jobs", jobs)
        return [(r["id"], r["direction"], r["dtype"], r["status"], r["max_error"]) for r in json_lines(out)]

    alone = outcomes("1")
    assert len(alone) > GROUP["sim"]
    assert outcomes("2") == alone


# --- selecting ------------------------------------------------------------------------------------------------


def test_select_meets_every_condition() -> None:
    entries = load_suite("conv_shapes_public", passes=("fprop", "wgrad"))
    where = ["family=resnet50", "direction=wgrad", "tags=strided"]
    chosen = select(entries, max_macs=10**9, where=where, sample=None, seed=0)
    wanted = [
        e
        for e in entries
        if e.family == "resnet50"
        and e.problem.direction == "wgrad"
        and "strided" in e.extras["tags"]
        and e.problem.macs <= 10**9
    ]
    assert chosen == wanted != []


def test_select_refuses_to_find_nothing() -> None:
    with pytest.raises(UsageError, match="--where"):
        select(load_suite("textbook"), max_macs=None, where=["family=nobody"], sample=None, seed=0)


def test_a_stratified_sample_takes_from_every_family_before_any_twice() -> None:
    entries = load_suite("conv_shapes_public")
    families = {entry.family for entry in entries}
    sample = stratified(entries, len(families), seed=3)
    assert {entry.family for entry in sample} == families
    assert stratified(entries, len(families), seed=3) == sample
    assert stratified(entries, 10**6, seed=3) == list(entries)


# --- compile ----------------------------------------------------------------------------------------------------


def _has_nvrtc() -> bool:
    try:
        return bool(nvrtc_version())
    except DeviceError:
        return False


needs_nvrtc = pytest.mark.skipif(not _has_nvrtc(), reason="needs NVRTC")


@needs_nvrtc
def test_compile_writes_and_verifies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = run(capsys, "compile", *SMALL, *H200, "-o", str(tmp_path), "--emit", "cu,cubin,ptx", "--json")
    [manifest] = json_lines(out)
    name = manifest["name"]
    assert status == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.cu", f"{name}.cubin", f"{name}.ptx", "manifest.json"}
    assert (tmp_path / f"{name}.cubin").read_bytes().startswith(b"\x7fELF")
    assert manifest["verification"]["status"] == "ok"
    on_disk = json.loads((tmp_path / "manifest.json").read_text())
    assert on_disk.items() <= manifest.items()
    for kernel in manifest["kernels"]:
        assert kernel.keys() >= {"name", "entry", "grid", "block", "cluster", "dynamic_shared_bytes", "arguments"}
        assert kernel["registers"] > 0


@needs_nvrtc
def test_compile_names_its_folder_after_the_kernel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "--arch", "sm_86", "--strategy", "direct", "--config", "split_q=2", "--verify", "no"]
    status, out, _ = run(capsys, "compile", *arguments)
    [folder] = tmp_path.iterdir()
    assert status == 0
    assert (folder / f"{folder.name}.cu").is_file()
    assert "split_q=2" in out
    assert "registers" in out
    assert "verified" not in out


@needs_nvrtc
def test_files_stand_where_there_is_no_memory_to_verify(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError("49.0 GiB")

    monkeypatch.setattr(convolution, "make_inputs", exhausted)
    status, _, err = run(capsys, "compile", *SMALL, *H200, "-o", str(tmp_path))
    assert (status, err) == (0, "not verified: too little memory: 49.0 GiB\n")
    assert len(list(tmp_path.glob("*.cubin"))) == 1


@needs_nvrtc
def test_compile_of_a_wrong_kernel_exits_with_5(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = convolution.reference
    monkeypatch.setattr(convolution, "reference", lambda *a: {name: y + 1 for name, y in right(*a).items()})
    status, out, _ = run(capsys, "compile", *SMALL, *H200, "-o", str(tmp_path))
    assert status == 5
    assert "wrong" in out


# --- how numbers look ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (output.quantity(0, "B"), "0 B"),
        (output.quantity(999, "B"), "999 B"),
        (output.quantity(1234, "B"), "1.23 kB"),
        (output.quantity(4.8e12, "B/s"), "4.8 TB/s"),
        (output.duration(2.5), "2.5 s"),
        (output.duration(0.0123), "12.3 ms"),
        (output.duration(295e-6), "295 µs"),
        (output.duration(1.5e-8), "15 ns"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(text: str, expected: str) -> None:
    assert text == expected


def test_explain_tells_what_scores_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    text = "attention heads_q=1 seq_q=8192 head_dim=64 dtype=fp16 causal=top_left"
    assert cli.main(["explain", text, "--target", "h200"]) == 0
    memory, traffic = capsys.readouterr().out.split("Scores, in memory or not\n")[1].splitlines()[:2]
    assert "134,217,728 bytes" in memory
    assert "; 0 in flash_attention" in memory
    operands = 4 * 8192 * 64 * 2
    assert f"{operands + 4 * 134_217_728:,} bytes with scores in memory" in traffic
    assert f"; {operands:,} in flash_attention" in traffic
