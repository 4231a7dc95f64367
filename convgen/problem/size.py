"""Sizes that are known only when a kernel is launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

from convgen.errors import ProblemError
from convgen.problem.text import LIMIT, refusal

__all__ = ["RuntimeSize"]

_FORM = re.compile(r"\*(?:<=([0-9]{1,19}))?(?:~([0-9]{1,19}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RuntimeSize:
    """A size passed at launch: one compiled kernel serves every value up to `bound` (None: unbounded).

    `hint` is the value to tune for. Printed `*`, `*<=131072`, `*~4096` or `*<=131072~4096`.
    """

    bound: int | None = None
    hint: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("bound", self.bound), ("hint", self.hint)):
            if value is not None and (type(value) is not int or not 1 <= value < LIMIT):
                raise refusal(name, value, "an integer of at least 1 and below 2^63, or nothing")
        if self.bound is not None and self.hint is not None and self.hint > self.bound:
            raise refusal("hint", self.hint, f"at most the bound {self.bound}")

    def __str__(self) -> str:
        bound = "" if self.bound is None else f"<={self.bound}"
        hint = "" if self.hint is None else f"~{self.hint}"
        return f"*{bound}{hint}"

    @classmethod
    def parse(cls, key: str, text: str) -> RuntimeSize:
        """Parse `*[<=bound][~hint]`. Raises ProblemError that names `key`."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise refusal(key, text, "an integer, or * with an optional bound and hint as in *<=128~32")
        bound, hint = (None if part is None else int(part) for part in match.groups())
        try:
            return cls(bound, hint)
        except ProblemError:
            raise refusal(key, text, "1 <= hint <= bound < 2^63") from None

    @property
    def typical(self) -> int:
        """The value to tune and estimate for: the hint, else the bound, else 1."""
        return self.hint or self.bound or 1
