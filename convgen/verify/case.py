"""What is verified, how, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from convgen.errors import CompileError, NotApplicableError, UsageError, WrongResultError
from convgen.problem import Problem
from convgen.reference import InputKind
from convgen.simulator import FaultKind
from convgen.space import Config, Value
from convgen.strategies import Strategy
from convgen.target import Target

Backend = Literal["sim", "cuda"]
Status = Literal["ok", "wrong", "not_applicable", "failed"]
Check = Literal["auto", "sanitize", "fast"]


@dataclass(frozen=True)
class Settings:
    """How to verify, on which backend, with which inputs (see `reference.make_inputs`).

    `check` is the simulator's: `sanitize` looks for faults, `fast` only computes, `auto` looks for faults in small
    problems whole and in a sample of the blocks of large ones. `jobs` processes share the work (on the GPU: threads
    that compile).
    """

    target: Target
    backend: Backend = "sim"
    seed: int = 0
    inputs: InputKind = "normal"
    check: Check = "auto"
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise UsageError(f"backend={self.backend!r}: expected one of {', '.join(get_args(Backend))}")


@dataclass(frozen=True)
class Case:
    """One thing to verify; `config=None` is the strategy's default."""

    problem: Problem
    strategy: Strategy
    config: Config | None = None


@dataclass(frozen=True)
class VerifyResult:
    """How a strategy's kernel did on a problem.

    ok              every element that was compared is within its bound, and nothing else was wrong
    wrong           an element is outside its bound, or the kernel broke a rule of the execution model
    not_applicable  the strategy does not cover the problem
    failed          it could not be lowered, compiled or run, or there is no telling right answers from wrong ones
    """

    problem: Problem
    strategy: str
    backend: Backend
    status: Status
    reason: str = ""
    """Why it is not ok; empty if it is."""
    config: Mapping[str, Value] | None = None
    max_error: float | None = None
    """|got - reference| of the element nearest its bound, or farthest beyond it; None if that is not finite."""
    bound: float | None = None
    """The bound of that element."""
    compared: int = 0
    """Elements held against the oracle; not numbers whose bound is infinite."""
    coverage: float = 0.0
    """Fraction of the output's elements that were compared."""
    sanitized: bool = False
    """Whether the simulator looked for faults too."""
    exact: bool = False
    """Whether it was also run on small integers, whose sums are exact, so that nothing but rounding to the output's
    type is allowed."""
    faults: tuple[FaultKind, ...] = ()
    """The rules of the execution model that it was seen to break, causes first."""
    seconds: float = 0.0
    """What building, running and comparing took."""

    @property
    def exit_code(self) -> int:
        """The command line's."""
        codes = {
            "ok": 0,
            "wrong": WrongResultError.exit_code,
            "not_applicable": NotApplicableError.exit_code,
            "failed": CompileError.exit_code,
        }
        return codes[self.status]

    def joined(self, other: VerifyResult) -> VerifyResult:
        """This result, with what another run of the same kernel that went well looked at as well."""
        return replace(self, sanitized=self.sanitized or other.sanitized, exact=self.exact or other.exact)

    def as_json(self) -> dict[str, Any]:
        """The form that `convgen verify --json` prints."""
        return {
            "problem": str(self.problem),
            "direction": self.problem.direction.value,
            "strategy": self.strategy,
            "config": None if self.config is None else dict(self.config),
            "backend": self.backend,
            "status": self.status,
            "reason": self.reason,
            "max_error": self.max_error,
            "bound": self.bound,
            "compared": self.compared,
            "coverage": self.coverage,
            "sanitized": self.sanitized,
            "exact": self.exact,
            "seconds": round(self.seconds, 4),
        }

    def sentence(self) -> str:
        """For people: the outcome, how near the bound it came, and how much was looked at."""
        where = "on the GPU" if self.backend == "cuda" else "in the simulator"
        if self.status != "ok":
            return f"{self.status.replace('_', ' ')} {where}: {self.reason}"
        whole = "all" if self.coverage == 1 else f"{self.coverage:.2%} of"
        error = "" if not self.bound else f"; largest error {self.max_error:.3g} of {self.bound:.3g} allowed"
        sanitized = ", no faults" if self.sanitized else ""
        exact = ", exact on integers" if self.exact else ""
        return f"verified {where}: {self.compared} elements right ({whole} the output){error}{exact}{sanitized}"
