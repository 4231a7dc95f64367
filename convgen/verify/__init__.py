"""Running kernels and holding their answers against the float64 oracle.

results = verify_cases([Case(problem, strategy)], Settings(target))
"""

from convgen.verify.batch import verify_cases, verify_plan, verify_problem
from convgen.verify.case import Backend, Case, Check, Settings, Status, VerifyResult

__all__ = [
    "Backend",
    "Case",
    "Check",
    "Settings",
    "Status",
    "VerifyResult",
    "verify_cases",
    "verify_plan",
    "verify_problem",
]
