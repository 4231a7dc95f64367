"""Generates, verifies, tunes and compiles CUDA kernels for convolutions.

`convgen.conv2d(x, w, …)` computes one of arrays. From a problem to its source and binary it is five lines:

    from convgen import Conv, Target, compile_cuda, get_strategy, lower
    from convgen.render import render

    problem = Conv.parse("conv2d n=32 c=64 in=56x56 k=128 filter=3x3 pad=1 dtype=bf16 layout=nhwc")
    plan = lower(problem, get_strategy("direct"), None, Target.preset("h200"))
    source = render(plan)
    binary = compile_cuda(source, plan.target)

Every public name is loaded when it is first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convgen.api import (
        PreparedWeight,
        avg_pool1d,
        avg_pool2d,
        avg_pool3d,
        batch_norm,
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        decisions,
        max_pool1d,
        max_pool2d,
        max_pool3d,
        prepare,
        scaled_dot_product_attention,
        tuning,
    )
    from convgen.compiler import Binary, compile_cuda
    from convgen.errors import (
        CompileError,
        ConfigError,
        ConvgenError,
        DeviceError,
        NotApplicableError,
        ProblemError,
        SimulatorFault,
        UsageError,
        WrongResultError,
    )
    from convgen.explain import Explanation, explain_problem
    from convgen.lowering import applicable, lower
    from convgen.plan import Plan
    from convgen.problem import (
        Accuracy,
        Activation,
        Attention,
        AttentionLayout,
        BatchNorm,
        Conv,
        Direction,
        DType,
        Epilogue,
        Layout,
        PadMode,
        Pool,
        Problem,
        RuntimeSize,
        TensorSpec,
        fold_batch_norm,
        load_suite,
        parse_problem,
        problem_from_json,
    )
    from convgen.strategies import Strategy, all_strategies, get_strategy
    from convgen.target import Target
    from convgen.verify import VerifyResult, verify_problem

__version__ = "0.1.0"

__all__ = [
    "Accuracy",
    "Activation",
    "Attention",
    "AttentionLayout",
    "BatchNorm",
    "Binary",
    "CompileError",
    "ConfigError",
    "Conv",
    "ConvgenError",
    "DType",
    "DeviceError",
    "Direction",
    "Epilogue",
    "Explanation",
    "Layout",
    "NotApplicableError",
    "PadMode",
    "Plan",
    "Pool",
    "PreparedWeight",
    "Problem",
    "ProblemError",
    "RuntimeSize",
    "SimulatorFault",
    "Strategy",
    "Target",
    "TensorSpec",
    "UsageError",
    "VerifyResult",
    "WrongResultError",
    "all_strategies",
    "applicable",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "compile_cuda",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "decisions",
    "explain_problem",
    "fold_batch_norm",
    "get_strategy",
    "load_suite",
    "lower",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "parse_problem",
    "prepare",
    "problem_from_json",
    "scaled_dot_product_attention",
    "tuning",
    "verify_problem",
]

_CALLS = frozenset({"PreparedWeight", "decisions", "prepare", "scaled_dot_product_attention", "tuning"})
"""What `convgen.api` has beside the layers."""

_CALL_PREFIXES = ("conv", "avg_pool", "max_pool", "batch_norm")
"""What the names of the layers begin with."""

# In the order in which they import one another, so that a light name never loads a heavy module.
_MODULES = ("errors", "problem", "target", "plan", "strategies", "lowering", "compiler", "explain", "verify")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in ("api",) if name in _CALLS or name.startswith(_CALL_PREFIXES) else _MODULES:
            found = getattr(importlib.import_module(f"convgen.{module}"), name, None)
            if found is not None:
                globals()[name] = found  # the next time it costs nothing
                return found
    raise AttributeError(f"module 'convgen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
