"""The command line as a process: its streams, signals, environment, and the processes it starts."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes_of import descendants, end_within

from tuning_db import open_database

CONVGEN = [sys.executable, "-m", "convgen"]
SMALL = ["conv2d", "n=1", "c=4", "in=8x8", "k=4", "filter=3x3", "--target", "h200"]
FULL = Path("/dev/full")
MANY = ["verify", "--suite", "textbook", "--jobs", "2", "--target", "h200", "--backend", "sim"]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **changes}


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CONVGEN, *arguments], env=environment(**changes), capture_output=True, encoding="utf-8", check=False
    )


# --- streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["ascii", "C"],
)
@pytest.mark.parametrize(("command", "plain"), [("--help", "K=V,..."), ("explain", " us")])
def test_any_encoding_will_do(changes: dict[str, str], command: str, plain: str) -> None:
    large = ["conv2d", "n=8", "c=64", "in=56x56", "k=64", "filter=3x3", "--target", "h200"]
    done = run("verify", "--help", **changes) if command == "--help" else run("explain", *large, **changes)
    assert done.returncode == 0, done.stderr
    assert plain in done.stdout
    assert done.stdout.isascii()


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [*CONVGEN, "list", "targets"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_told(unbuffered: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [*CONVGEN, "list", "targets"],
            env=environment(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "convgen: nothing more can be written: No space left on device\n"


@pytest.mark.parametrize(
    ("closed", "status", "out", "err"),
    [(1, 1, "", "convgen: nothing more can be written: stdout is closed\n"), (2, 2, "", "")],
)
def test_a_closed_stream_is_no_bug(closed: int, status: int, out: str, err: str) -> None:
    words = "list targets" if closed == 1 else "explain conv2d c=0.5"
    shell = f"exec '{sys.executable}' -m convgen {words} {closed}>&-"
    done = subprocess.run(["sh", "-c", shell], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_a_cache_that_cannot_be_written_is_told_once_and_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    # Two groups of cases, so that two processes share them: each finds the cache useless.
    arguments = ["--suite", "conv_shapes_public", "--max-macs", "3e4", "--strategy", "direct"]
    arguments += ["--directions", "fprop,dgrad,wgrad", "--sample", "20", "--jobs", "2"]
    done = run(
        "verify", *arguments, "--backend", "sim", "--target", "h200", CONVGEN_CACHE_DIR=str(tmp_path / "file" / "cache")
    )
    assert done.returncode == 0, done.stdout
    [line] = [line for line in done.stderr.splitlines() if "cache" in line]
    assert re.fullmatch(r"convgen: warning: the cache .* cannot be written .*CONVGEN_CACHE_DIR.*", line)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy")
@pytest.mark.parametrize("command", ["doctor", "explain", "compile", "verify"])
def test_a_home_that_cannot_be_written_is_no_bug(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem = [word for word in SMALL if word not in ("--target", "h200")]
    words = {"doctor": [], "compile": [*problem, "-o", str(tmp_path / "kernel")]}.get(command, problem)
    kept = {k: v for k, v in environment().items() if k not in ("CUPY_CACHE_DIR", "CONVGEN_CACHE_DIR")}
    done = subprocess.run(
        [*CONVGEN, command, *words],
        env={**kept, "HOME": str(tmp_path / "file"), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "unexpected" not in done.stderr
    told = done.stdout if command == "doctor" else done.stderr
    assert "CuPy cannot make its cache" in told
    assert "set CUPY_CACHE_DIR to a folder that can be written" in told
    if command == "doctor":
        assert re.search(r"^-- +CuPy +CuPy cannot make its cache", told, re.MULTILINE)
        assert re.search(r"^-- +GPU +not known: CuPy", told, re.MULTILINE)
        assert re.search(r"^ +CuPy +to run +set CUPY_CACHE_DIR", told, re.MULTILINE)


# --- the simulator's settings and compiler ---------------------------------------------------------------------------


def test_zig_needs_neither_a_path_nor_a_home(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    kept = {"PATH": "/nowhere", "PYTHONPATH": environment()["PYTHONPATH"], "CONVGEN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([*CONVGEN, "doctor"], env=kept, capture_output=True, text=True, check=False)
    assert re.search(r"^ok +C\+\+ compiler +\S.* -m ziglang cc \(clang version", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("wanted", ["nosuch", "g++ -O1", "/tmp", "cat", "false"])
def test_a_compiler_that_cannot_be_used_is_refused_by_name(wanted: str) -> None:
    done = run("verify", *SMALL, "--strategy", "direct", "--backend", "sim", CONVGEN_SIM_CXX=wanted)
    assert done.returncode == 6
    assert done.stderr.startswith(f"convgen: CONVGEN_SIM_CXX={wanted}: expected the name or path of g++ or clang++")
    assert done.stderr.count("\n") == 1
    told = run("doctor", CONVGEN_SIM_CXX=wanted)
    assert re.search(rf"^-- +C\+\+ compiler +CONVGEN_SIM_CXX={re.escape(wanted)}: ", told.stdout, re.MULTILINE)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_wrong_setting_of_the_simulator_is_one_usage_error(jobs: str) -> None:
    many = ["--suite", "conv_shapes_public", "--max-macs", "3e4", "--sample", "20", "--jobs", jobs]
    done = run("verify", *many, "--target", "h200", "--backend", "sim", CONVGEN_SIM_TIMEOUT="abc")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "convgen: CONVGEN_SIM_TIMEOUT='abc': expected seconds from 0 (no limit) to 10000000\n"


def test_an_empty_setting_is_none(tmp_path: Path) -> None:
    names = ("CONVGEN_SIM_TIMEOUT", "CONVGEN_SIM_CXX", "CONVGEN_CACHE_DIR", "CONVGEN_TUNING_DB", "CUDA_HOME")
    empty = dict.fromkeys(names, "")
    done = run("compile", *SMALL, "-o", str(tmp_path / "kernel"), **empty, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "verified in the simulator" in done.stdout
    assert (tmp_path / "cache" / "convgen").is_dir()


FULL_DISK = """#!/bin/sh
case "$*" in
    *--version*) echo "g++ of the tests" ;;
    *-dM*) echo "#define __GNUC__ 12 " ;;
    *) echo "$0: error writing to /tmp/x.s: No space left on device" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def full_disk(tmp_path: Path) -> dict[str, str]:
    """An environment whose compiler finds no space, and where nothing is built yet."""
    compiler = tmp_path / "g++"
    compiler.write_text(FULL_DISK)
    compiler.chmod(0o755)
    return {"CONVGEN_SIM_CXX": str(compiler), "CONVGEN_CACHE_DIR": str(tmp_path / "cache")}


def test_files_stand_where_the_compiler_finds_no_space(full_disk: dict[str, str], tmp_path: Path) -> None:
    done = run("compile", *SMALL, "-o", str(tmp_path / "kernel"), **full_disk)
    assert done.returncode == 0
    assert re.match(r"not verified: .*g\+\+ cannot work on this machine .*No space left.*TMPDIR", done.stderr)
    assert len(list((tmp_path / "kernel").glob("*.cubin"))) == 1


def test_what_the_machine_lacks_is_no_candidates_fault(full_disk: dict[str, str], tmp_path: Path) -> None:
    problem = [word for word in SMALL if word not in ("--target", "h200")]
    database = tmp_path / "tuning.sqlite"
    done = run("tune", *problem, "--backend", "sim", "--trials", "3", "--db", str(database), **full_disk)
    assert done.returncode == 6
    assert "No space left on device" in done.stderr
    assert open_database(database).trials() == []
    checked = run("verify", *SMALL, "--backend", "sim", **full_disk)
    assert (checked.returncode, checked.stdout) == (6, "")


# --- signals --------------------------------------------------------------------------------------------


@contextmanager
def _verifying() -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A command in a session of its own once its two workers have started."""
    with subprocess.Popen(
        [*CONVGEN, *MANY],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while len(descendants(process.pid)) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            yield process, descendants(process.pid)
        finally:
            process.kill()


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("wait", [0.0, 1.5])
@pytest.mark.parametrize(
    ("number", "to_all", "status", "said"),
    [
        (signal.SIGINT, True, 130, "interrupted\n"),
        (signal.SIGTERM, False, 143, ""),
        (signal.SIGKILL, False, -9, None),
    ],
)
def test_workers_end_with_the_command(
    number: signal.Signals, to_all: bool, status: int, said: str | None, wait: float
) -> None:
    with _verifying() as (process, children):
        assert len(children) >= 2
        time.sleep(wait)
        (os.killpg if to_all else os.kill)(process.pid, number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == status
        assert said is None or err == said
        assert end_within(20, children)


ENDLESS = r"""
import re, sys
from convgen import cli
from convgen.verify import sim

right = sim.render

def render(plan):
    print("rendered", file=sys.stderr, flush=True)
    return re.sub(r"(__global__[^{;]*\{)", r"\1 for (volatile int i = 0; i == 0;) {}", right(plan))

sim.render = render
sys.exit(cli.main())
"""


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")]
)
def test_a_kernel_in_the_simulator_is_not_waited_for(number: signal.Signals, status: int, said: str) -> None:
    words = ["verify", *SMALL, "--strategy", "direct", "--backend", "sim", "--check", "fast"]
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, *words],
        env=environment(CONVGEN_SIM_TIMEOUT="60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "rendered\n"
        time.sleep(2)  # it is built and launched
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate()
        assert time.monotonic() - began < 10
    assert (process.returncode, out, err) == (status, "", said)
