"""Work in child processes, which may hang or crash without harm to the caller.

    child = Child(make_server, argument)         # in the child: serve = make_server(argument)
    reply = child.call(message, deadline=5.0)    # in the child: reply = serve(message, announce)

A child is a fresh interpreter in a session of its own: it shares no state with the caller, never sees the terminal's
Ctrl-C, and does not import the caller's `__main__`. It ends with the caller, whatever ends that, and takes all that it
started with it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, TypeVar

from convgen.errors import ConvgenError

Announce = Callable[[str], None]
"""Tells the caller which phase of its work a child has come to."""

Serve = Callable[[Any, Announce], Any]
"""What answers the messages in a child."""

Deadlines = Mapping[str, float | None]
"""Seconds that each phase may take; None is no limit."""

START_SECONDS = 120.0
"""How long a child may take to start: the interpreter and its imports, on a busy machine or a slow file system."""

END_SECONDS = 60.0
"""How long to wait for a killed child. One with work on a GPU is gone when the driver has torn down its context."""

TAIL_BYTES = 2000
"""How much of a child's last output is told when it dies."""


class ChildLost(ConvgenError):
    """A child process is gone, and with it its reply; `phase` is the last that it announced ("" if none)."""

    def __init__(self, message: str, phase: str) -> None:
        super().__init__(message)
        self.phase = phase


class ChildHung(ChildLost):
    """No reply before the deadline, of `seconds`. The child was killed."""

    def __init__(self, name: str, phase: str, seconds: float) -> None:
        during = f" ({phase})" if phase else ""
        super().__init__(f"the {name} process did not answer within {seconds:g} s{during}, and was stopped", phase)
        self.seconds = seconds


class ChildDied(ChildLost):
    """The child ended by itself, or could not be started; the message tells how, and its last output.

    `signal` is what ended it, 0 if none did.
    """

    def __init__(self, message: str, phase: str, signal: int = 0) -> None:
        super().__init__(message, phase)
        self.signal = signal


class ChildNotStarted(ChildDied):
    """There was no child to begin with: nothing that it was asked is to blame."""


class ChildRaised(ConvgenError):
    """The call raised in the child, which is alive and well; the message is the error's."""


class Child:
    """A server in a process of its own: started by the first call, and again by the next after it was lost.

    `make(*arguments)` is called there; both must be picklable by reference, so `make` is a function of a module. Calls
    take turns; `close` may be called from any thread and ends a call that is in progress.
    """

    def __init__(self, make: Callable[..., Serve], *arguments: Any, name: str = "child") -> None:
        self._name = name
        self._made_by = pickle.dumps((make, arguments))
        self._live: _Live | None = None
        self._turn = threading.Lock()
        self._switching = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, which leads a process group of the same number; None while there is none."""
        live = self._live
        return None if live is None else live.process.pid

    def call(self, message: Any, deadline: float | None, phases: Deadlines = MappingProxyType({})) -> Any:
        """The server's reply. `deadline` seconds are allowed up to the first phase that it announces, then those that
        `phases` gives for each (`deadline` unless listed); None is no limit.

        Raises ChildHung, ChildDied (ChildNotStarted if there never was a child) or ChildRaised. Whatever else
        interrupts the call ends the child too: its reply would be taken for the next one's.
        """
        try:
            raw = pickle.dumps(message)
        except Exception as error:  # pickle raises whatever the object's own methods do
            raise ChildRaised(f"{type(message).__name__} cannot be sent: {error}") from error
        with self._turn:
            try:
                live = self._live or self._start()
                live.send(raw)
                return live.reply(deadline, phases)
            except ChildRaised:
                raise
            except BaseException:
                self._end()
                raise

    def stop(self) -> None:
        """End the process, if there is one. The next call starts another."""
        with self._turn:
            self._end()

    def close(self) -> None:
        """End the process for good; a later call raises ChildDied."""
        with self._switching:
            self._closed = True
            if self._live is not None:
                self._live.kill()
        self.stop()

    def _start(self) -> _Live:
        with self._switching:
            if self._closed:
                raise ChildDied(f"the {self._name} process is closed", "")
            live = self._live = _Live(self._name)
            # However its owner ends, the process does not outlive it.
            live.finalizer = weakref.finalize(self, _end_in, os.getpid(), live)
        try:
            live.send(self._made_by)
            live.reply(START_SECONDS, {})
        except ChildLost as error:
            if self._closed:
                raise
            raise ChildNotStarted(str(error), error.phase) from error
        return live

    def _end(self) -> None:
        with self._switching:
            live, self._live = self._live, None
        if live is not None:
            if live.finalizer is not None:
                live.finalizer.detach()
            live.end()


def _end_in(owner: int, live: _Live) -> None:
    if os.getpid() == owner:  # not in a fork of it
        live.end()


class _Live:
    """A running child: its process, and this side's ends of its pipes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.finalizer: weakref.finalize[[int, _Live], Child] | None = None
        self._reaping = threading.Lock()
        self._tail = b""
        self.connection, theirs = multiprocessing.Pipe()
        ended, self._lifeline = multiprocessing.Pipe(duplex=False)
        command = [
            *(sys.executable, "-P", "-c", _BOOT),
            *(json.dumps(sys.path), str(theirs.fileno()), str(ended.fileno())),
        ]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), ended.fileno()),
                start_new_session=True,
            )
        except OSError as error:
            raise ChildNotStarted(f"the {name} process cannot be started: {error}", "") from error
        finally:
            theirs.close()
            ended.close()
        assert self.process.stdout is not None
        self._output = self.process.stdout
        self._has_output = True
        os.set_blocking(self._output.fileno(), False)

    def send(self, raw: bytes) -> None:
        try:
            self.connection.send_bytes(raw)
        except OSError:
            raise self._died("") from None

    def reply(self, deadline: float | None, phases: Deadlines) -> Any:
        phase, seconds = "", deadline
        while True:
            kind, value = self._receive(phase, seconds)
            if kind == _PHASE:
                phase, seconds = value, phases.get(value, deadline)
            elif kind == _RAISED:
                raise ChildRaised(value)
            else:
                return value

    def _receive(self, phase: str, seconds: float | None) -> tuple[str, Any]:
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            sources: list[Connection | int] = [self.connection]
            if self._has_output:
                sources.append(self._output.fileno())
            ready = wait(sources, None if end is None else max(0.0, end - time.monotonic()))
            self._drain()
            if self.connection in ready:
                try:
                    raw = self.connection.recv_bytes()
                except (EOFError, OSError):
                    raise self._died(phase) from None
                return self._loaded(raw, phase)
            if end is not None and time.monotonic() >= end:
                assert seconds is not None
                raise ChildHung(self.name, phase, seconds)

    def _loaded(self, raw: bytes, phase: str) -> tuple[str, Any]:
        try:
            kind, value = pickle.loads(raw)
        except Exception as error:  # whatever a process that overwrote its own memory may send
            raise ChildDied(f"the {self.name} process sent what cannot be read: {error}", phase) from error
        return kind, value

    def _drain(self) -> None:
        """Take what the child has printed: were nobody to read it, the child would wait."""
        if self._has_output:
            with contextlib.suppress(BlockingIOError):
                printed = os.read(self._output.fileno(), 1 << 16)
                self._has_output = bool(printed)
                self._tail = (self._tail + printed)[-TAIL_BYTES:]

    def _died(self, phase: str) -> ChildDied:
        self._await_exit()
        self.kill()
        self._reap()
        self._drain()
        code = self.process.returncode
        how = f"by {_signal_name(-code)}" if code < 0 else f"with status {code}"
        during = f" ({phase})" if phase else ""
        said = self._tail.decode(errors="replace").strip()
        message = f"the {self.name} process ended {how}{during}" + (f":\n{said}" if said else "")
        return ChildDied(message, phase, max(0, -code))

    def _await_exit(self) -> None:
        """Let a process whose pipe is closed end as it wants to, so that its status is its own."""
        end = time.monotonic() + END_SECONDS
        with contextlib.suppress(ChildProcessError):  # reaped by someone else
            while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() >= end:
                    break
                time.sleep(0.002)

    def kill(self) -> None:
        """Kill the child and all that it started; may be called from any thread."""
        with self._reaping, contextlib.suppress(ProcessLookupError):
            if self.process.returncode is None:  # until it is reaped, the number is its own
                os.killpg(self.process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        with self._reaping, contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)

    def end(self) -> None:
        """Kill, wait until it is gone, and close the pipes."""
        self.kill()
        self._reap()
        self._lifeline.close()
        self.connection.close()
        self._output.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- in the child ---------------------------------------------------------------------------------------

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import convgen.processes as p; p.run_child()"

_PHASE, _RAISED, _REPLY = "phase", "raised", "reply"


def run_child() -> None:
    """What a child process does: make its server, then answer messages until the caller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, ended = (Connection(int(number)) for number in sys.argv[2:])
    threading.Thread(target=_end_with_caller, args=(ended,), daemon=True).start()
    make, arguments = pickle.loads(connection.recv_bytes())
    serve = make(*arguments)
    connection.send((_REPLY, None))
    with contextlib.suppress(EOFError):
        while True:
            _answer(connection, serve, connection.recv_bytes())
    _end_all()


def _answer(connection: Connection, serve: Serve, raw: bytes) -> None:
    try:
        reply = serve(pickle.loads(raw), lambda phase: connection.send((_PHASE, phase)))
        connection.send((_REPLY, reply))
    except Exception as error:
        traceback.print_exc()
        connection.send((_RAISED, f"{type(error).__name__}: {error}"))


def _end_with_caller(ended: Connection) -> None:
    """End this process and all that it started as soon as the caller closes the other end, or is gone."""
    with contextlib.suppress(EOFError, OSError):
        ended.recv_bytes()
    _end_all()


def _end_all() -> None:
    os.killpg(os.getpid(), signal.SIGKILL)


# --- several --------------------------------------------------------------------------------------------

T = TypeVar("T")
Job = Callable[[Child], T]
"""What to do with a child; it may raise, and lose the child."""


class Pool:
    """Threads that each have one child; threads and children are started when there is work for them."""

    def __init__(self, workers: int, make: Callable[..., Serve], *arguments: Any, name: str = "child") -> None:
        self.workers = workers
        self._new_child = functools.partial(Child, make, *arguments, name=name)
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Job[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, job: Job[T]) -> Future[T]:
        """Do a job when a child is free. A job that has not begun can be cancelled. Raises RuntimeError when closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._waiting.put((future, job))
            if self._idle < self._waiting.qsize() and len(self._threads) < self.workers:
                child = self._new_child()
                thread = threading.Thread(target=self._work, args=(child,), daemon=True)
                self._children.append(child)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        """Cancel what has not begun and end every child: a job that is in progress raises ChildDied."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._waiting.get_nowait()
                if item is not None and item[0].cancel():
                    item[0].set_running_or_notify_cancel()
        for _ in self._threads:
            self._waiting.put(None)
        for child in self._children:
            child.close()
        for thread in self._threads:
            thread.join()

    def _work(self, child: Child) -> None:
        while True:
            with self._lock:
                self._idle += 1
            item = self._waiting.get()
            with self._lock:
                self._idle -= 1
            if item is None:
                return
            future, job = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job(child))
                except BaseException as error:
                    future.set_exception(error)
