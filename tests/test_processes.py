"""Child processes: what they answer, how their loss is told, and that nothing of them is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path

import child_servers
import pytest
from processes_of import descendants, end_within, is_alive

from convgen.processes import Child, ChildDied, ChildHung, ChildNotStarted, ChildRaised, Pool

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

PATIENCE = 20.0


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(child_servers.worker)
    yield child
    child.close()


def pid_of(child: Child) -> int:
    assert child.pid is not None
    return child.pid


def test_one_process_answers_every_call_and_keeps_its_state() -> None:
    child = Child(child_servers.counter, 10)
    assert child.pid is None
    count, pid, message = child.call({"any": ["thing"]}, None)
    assert (count, pid, message) == (11, child.pid, {"any": ["thing"]})
    assert pid != os.getpid()
    assert child.call("again", PATIENCE) == (12, pid, "again")
    child.close()
    assert not is_alive(pid)


def test_large_messages_pass_both_ways() -> None:
    child = Child(child_servers.counter)
    payload = os.urandom(5_000_000)
    assert child.call(payload, PATIENCE)[2] == payload
    child.close()


@pytest.mark.parametrize("verb", ["sleep", "spin", "flood"])
def test_a_hung_child_is_stopped_and_the_next_call_has_a_new_one(child: Child, verb: str) -> None:
    child.call(("sleep", 0), PATIENCE)
    first = pid_of(child)
    with pytest.raises(ChildHung, match=r"the child process did not answer within 0\.3 s, and was stopped") as caught:
        child.call((verb, 600), 0.3)
    assert caught.value.phase == ""
    assert not is_alive(first)
    assert child.pid is None
    assert child.call(("sleep", 0), PATIENCE) == ("sleep", child.pid)
    assert child.pid != first


def test_every_phase_has_a_deadline_of_its_own(child: Child) -> None:
    assert child.call(("phases", ("load", 0.2), ("run", 0.2), ("time", 0.2)), 0.5, {"run": PATIENCE})[0] == "phases"
    with pytest.raises(ChildHung, match=r"within 0\.2 s \(run\)") as caught:
        child.call(("phases", ("load", 0.3), ("run", 600)), PATIENCE, {"run": 0.2})
    assert (caught.value.phase, caught.value.seconds) == ("run", 0.2)


@pytest.mark.parametrize(
    ("message", "how", "number"),
    [(("exit", 3), "with status 3", 0), (("crash",), "by SIGSEGV", signal.SIGSEGV), (("exit", 0), "with status 0", 0)],
)
def test_a_death_is_told_with_its_cause_and_last_words(
    child: Child, message: tuple[object, ...], how: str, number: int
) -> None:
    with pytest.raises(ChildDied, match=rf"^the child process ended {how}") as caught:
        child.call(message, PATIENCE)
    assert (type(caught.value), caught.value.signal) == (ChildDied, number)
    assert ("last words" in str(caught.value)) == (message[0] == "exit")
    assert child.call(("sleep", 0), PATIENCE)[1] == child.pid


def test_death_from_outside_is_told_with_the_phase(child: Child) -> None:
    child.call(("sleep", 0), PATIENCE)
    killer = threading.Timer(0.2, os.kill, (pid_of(child), signal.SIGKILL))
    killer.start()
    with pytest.raises(ChildDied, match=r"^the child process ended by SIGKILL \(run\)$") as caught:
        child.call(("phases", ("run", 600)), PATIENCE)
    assert caught.value.phase == "run"


def test_an_error_in_a_call_leaves_the_child_as_it_was(child: Child) -> None:
    child.call(("sleep", 0), PATIENCE)
    before = child.pid
    with pytest.raises(ChildRaised, match=r"^ValueError: of no use$"):
        child.call(("raise", "of no use"), PATIENCE)
    with pytest.raises(ChildRaised, match=r"pickle|local object"):
        child.call(("function",), PATIENCE)
    with pytest.raises(ChildRaised, match=r"^tuple cannot be sent: "):
        child.call(("sleep", lambda: None), PATIENCE)
    assert child.call(("sleep", 0), PATIENCE)[1] == before


def test_a_server_that_cannot_be_made_is_told_with_the_reason() -> None:
    child = Child(child_servers.refuses, name="measuring")
    with pytest.raises(ChildNotStarted, match=r"(?s)the measuring process ended with status 1.*no server to be had"):
        child.call("hello", PATIENCE)
    child.close()


def test_an_interpreter_that_cannot_be_started_is_told(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildNotStarted, match=r"^the child process cannot be started: .*No such file"):
        child.call(("sleep", 0), PATIENCE)


def test_what_a_child_prints_blocks_nobody_and_only_its_end_is_kept(
    child: Child, capfd: pytest.CaptureFixture[str]
) -> None:
    assert child.call(("print", 1_000_000), PATIENCE)[0] == "print"
    with pytest.raises(ChildDied) as caught:
        child.call(("exit", 1), PATIENCE)
    assert len(str(caught.value)) < 2100
    assert str(caught.value).endswith("last words")
    assert capfd.readouterr() == ("", "")


def test_a_child_does_not_see_an_interrupt(child: Child) -> None:
    assert child.call(("interrupt",), PATIENCE)[0] == "interrupt"


def test_what_a_child_started_ends_with_it(child: Child) -> None:
    with pytest.raises(ChildHung) as caught:
        child.call(("parent", 600), PATIENCE, _Any(0.2))
    assert end_within(PATIENCE, {int(caught.value.phase)})


class _Any(dict[str, float]):
    """The same deadline for every phase."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get(self, phase: str, default: object = None) -> float:  # type: ignore[override]
        return self.seconds


def test_a_call_that_is_interrupted_does_not_answer_the_next(child: Child) -> None:
    child.call(("sleep", 0), PATIENCE)
    first = pid_of(child)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            child.call(("sleep", 600), None)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(first)
    assert child.call(("interrupt",), PATIENCE)[0] == "interrupt"


def test_a_child_can_be_stopped_and_closed_from_another_thread(child: Child) -> None:
    child.call(("sleep", 0), PATIENCE)
    pid = pid_of(child)
    child.stop()
    assert not is_alive(pid)
    child.call(("sleep", 0), PATIENCE)
    pid = pid_of(child)
    threading.Timer(0.2, child.close).start()
    with pytest.raises(ChildDied):
        child.call(("sleep", 600), None)
    assert not is_alive(pid)
    with pytest.raises(ChildDied, match="is closed"):
        child.call(("sleep", 0), None)


def test_a_child_that_is_forgotten_ends() -> None:
    child = Child(child_servers.worker)
    child.call(("sleep", 0), PATIENCE)
    pid = pid_of(child)
    del child
    assert not is_alive(pid)


SCRIPT = """
    import sys, os, time
    import child_servers
    from convgen.processes import Child
    child = Child(child_servers.worker)
    print("started", flush=True)
    child.call(("sleep", 0), None)
    class Phases(dict):
        def get(self, phase, default=None):
            print(child.pid, phase, flush=True)
            return None
    {then}
"""


@contextmanager
def run_script(then: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A script without `if __name__ == "__main__"`."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("{then}", then))
    with subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            yield script
        finally:
            script.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_their_parent_whatever_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    with run_script("child.call(('parent', 600), None, Phases())", tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        pids = set(map(int, parent.stdout.readline().split()))
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        assert descendants(parent.pid) == pids
        os.killpg(parent.pid, number)
        assert end_within(PATIENCE, pids)
        parent.wait(PATIENCE)


@pytest.mark.parametrize("then", ["raise SystemExit(1)", "1 / 0", "pass"])
def test_children_end_with_a_parent_that_leaves(then: str, tmp_path: Path) -> None:
    with run_script(f"print(child.pid, flush=True); {then}", tmp_path) as parent:
        said, _ = parent.communicate(timeout=PATIENCE)
        match = re.match(r"started\n(\d+)\n", said)
        assert match is not None, said
        assert end_within(PATIENCE, {int(match[1])})


# --- pools --------------------------------------------------------------------------------------------


def test_a_pool_starts_children_as_they_are_needed_and_keeps_them() -> None:
    pool = Pool(3, child_servers.worker)
    before = descendants(os.getpid())
    first = pool.submit(lambda child: child.call(("sleep", 0), PATIENCE)).result(PATIENCE)
    assert descendants(os.getpid()) - before == {first[1]}
    together = [pool.submit(lambda child: child.call(("sleep", 1.0), PATIENCE)) for _ in range(3)]
    pids = {future.result(PATIENCE)[1] for future in together}
    assert len(pids) == 3
    assert first[1] in pids
    more = [pool.submit(lambda child: child.call(("sleep", 0), PATIENCE)) for _ in range(20)]
    assert {future.result(PATIENCE)[1] for future in more} <= pids
    pool.close()
    assert descendants(os.getpid()) <= before


def test_a_lost_child_of_a_pool_is_replaced() -> None:
    pool = Pool(1, child_servers.worker)
    with pytest.raises(ChildHung):
        pool.submit(lambda child: child.call(("spin",), 0.2)).result(PATIENCE)
    with pytest.raises(ChildDied):
        pool.submit(lambda child: child.call(("exit", 1), PATIENCE)).result(PATIENCE)
    assert pool.submit(lambda child: child.call(("sleep", 0), PATIENCE)).result(PATIENCE)[0] == "sleep"
    pool.close()


def test_closing_a_busy_pool_ends_its_work_at_once() -> None:
    before = descendants(os.getpid())
    pool = Pool(2, child_servers.worker)
    futures = [pool.submit(lambda child: child.call(("sleep", 600), None)) for _ in range(5)]
    deadline = time.monotonic() + PATIENCE
    while len(descendants(os.getpid()) - before) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert futures[4].cancel()
    pool.close()
    done, waiting = wait(futures, PATIENCE)
    assert not waiting
    errors = []
    for future in done:
        with pytest.raises((ChildDied, CancelledError)) as caught:
            future.result()
        errors.append(caught.type)
    assert (errors.count(ChildDied), errors.count(CancelledError)) == (2, 3)
    assert descendants(os.getpid()) <= before
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lambda child: None)
