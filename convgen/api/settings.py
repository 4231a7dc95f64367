"""How a call finds its kernel: never tuned, from the database, tuned on a miss, or from decisions taken elsewhere."""

from __future__ import annotations

import functools
import numbers
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from convgen.api.decision import Table, read_decisions
from convgen.errors import UsageError

MODES = ("never", "cached", "on_miss", "frozen")
TIME_LIMIT = 10.0


# Compared by identity, so that it costs nothing in the key of a call: `setting` returns equal ones as one object.
@dataclass(frozen=True, eq=False, slots=True)
class Setting:
    """`time_limit` (seconds, None for no limit) and `trials` bound the search of one problem under "on_miss"."""

    mode: str = "cached"
    time_limit: float | None = TIME_LIMIT
    trials: int | None = None
    frozen: Table | None = None
    """What "frozen" is served from."""


@functools.lru_cache(256)
def setting(mode: str, time_limit: float | None, trials: int | None, decisions: str | None) -> Setting:
    """The setting, checked. Raises UsageError."""
    if mode not in MODES:
        raise UsageError(f"tuning mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode != "on_miss" and (time_limit, trials) != (TIME_LIMIT, None):
        raise UsageError(f"tuning({mode!r}): time_limit and trials belong to 'on_miss', the only mode that tunes")
    if (mode == "frozen") != (decisions is not None):
        raise UsageError(
            "tuning('frozen') is served from decisions=, the text that convgen.decisions() gave, and no other mode is"
        )
    if time_limit is not None and not time_limit > 0:
        raise UsageError(f"time_limit={time_limit}: expected seconds above 0, or None for no limit")
    if trials is not None and trials < 1:
        raise UsageError(f"trials={trials}: expected at least 1, or None for no limit")
    if mode == "on_miss" and time_limit is None and trials is None:
        raise UsageError("tuning('on_miss', time_limit=None): expected a limit, of time or of trials")
    return Setting(mode, time_limit, trials, None if decisions is None else read_decisions(decisions))


def tuning(
    mode: str, *, time_limit: float | None = TIME_LIMIT, trials: int | None = None, decisions: str | None = None
) -> Tuning:
    """Set how calls find their kernels: for the whole process, or within a `with` block for its thread or task alone.

    - "never": the best default by the cost model; no database.
    - "cached", what holds unless set: the database's kernel; on a miss the best default at once (a tuned neighbour's
      config or the cost model's choice).
    - "on_miss": a miss is tuned, once, within `time_limit` seconds and `trials` kernels, and remembered. Under the
      capture of a CUDA graph it is answered as by "cached".
    - "frozen": served from `decisions` alone, the text of `convgen.decisions()`, never from the database; a miss is the
      default of "never". So processes that must agree, do: one of them decides and sends its text to the others.

    Raises UsageError.
    """
    # Before `setting`, whose cache takes only what can be hashed.
    if not isinstance(mode, str):
        raise UsageError(f"tuning mode {mode!r}: expected one of {', '.join(MODES)}")
    if decisions is not None and not isinstance(decisions, str):
        raise UsageError(f"decisions is a {type(decisions).__name__}, expected the text that convgen.decisions() gave")
    if time_limit is not None and not _is_number(time_limit, numbers.Real):
        raise UsageError(f"time_limit={time_limit!r}: expected seconds above 0, or None for no limit")
    if trials is not None and not _is_number(trials, numbers.Integral):
        raise UsageError(f"trials={trials!r}: expected an integer of at least 1, or None for no limit")
    return Tuning(setting(mode, time_limit, trials, decisions))


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


class Tuning:
    """What `tuning` returns. It holds for the process from its making until a later one, or for a `with` block."""

    def __init__(self, chosen: Setting) -> None:
        self.setting = chosen
        with _lock:
            _given.append(self)
            # One that a `with` block is about to take back is among the latest.
            del _given[1:-_REMEMBERED]

    def __enter__(self) -> Self:
        with _lock:
            if self in _given:
                _given.remove(self)
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.set(_entered.get()[:-1])


def current() -> Setting:
    """The setting of this thread or task."""
    return (_entered.get() or _given)[-1].setting


_REMEMBERED = 64
_lock = threading.Lock()
_entered: ContextVar[tuple[Tuning, ...]] = ContextVar("convgen.tuning", default=())
_given: list[Tuning] = []
Tuning(setting("cached", TIME_LIMIT, None, None))
