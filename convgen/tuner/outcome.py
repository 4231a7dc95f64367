"""What came of measuring a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from convgen.measure import Stage, Timing
from convgen.simulator import FaultKind
from convgen.verify import VerifyResult

TrialStatus = Literal[
    "ok",
    "compile_error",
    "compile_timeout",
    "launch_failure",
    "illegal_access",
    "hang",
    "run_timeout",
    "wrong_result",
    "out_of_memory",
    "worker_died",
    "failed",
]

BAD: frozenset[TrialStatus] = frozenset({"illegal_access", "hang", "worker_died"})
"""What harms the process or the GPU that runs it: such a source is not run twice."""

TIMEOUTS: frozenset[TrialStatus] = frozenset({"compile_timeout", "run_timeout"})
"""What this machine was too slow for, which says nothing of the candidate. A kernel that hangs a GPU is a `hang`."""

_FAULTS: dict[FaultKind, TrialStatus] = {
    FaultKind.DEADLOCK: "hang",
    FaultKind.ENDLESS: "run_timeout",
    FaultKind.DIVERGENT_BARRIER: "wrong_result",
    FaultKind.RACE: "wrong_result",
    FaultKind.UNINITIALISED: "wrong_result",
}
"""The rest is access to memory that is not the kernel's, or a trap."""


@dataclass(frozen=True)
class Outcome:
    """`reason` is a sentence, empty if it is ok; `timing` is there if it is ok.

    `error` and `bound` are those of the element of the output nearest its bound, in the last verification.
    """

    status: TrialStatus
    reason: str = ""
    timing: Timing | None = None
    stage: Stage = "screen"
    error: float | None = None
    bound: float | None = None
    source_key: str = ""


def refusal(result: VerifyResult, source_key: str) -> Outcome:
    """What a verification that is not ok makes of a candidate."""
    status: TrialStatus = "wrong_result" if result.status == "wrong" else "failed"
    if result.faults:
        status = _FAULTS.get(result.faults[0], "illegal_access")
    return Outcome(status, result.reason, error=result.max_error, bound=result.bound, source_key=source_key)
