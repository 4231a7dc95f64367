"""Problems: what to compute, as immutable values that say nothing about how."""

from __future__ import annotations

from convgen.problem.attention import Attention
from convgen.problem.attention_words import Align, Bias, Mask, Varlen
from convgen.problem.batch_norm import BatchNorm
from convgen.problem.batch_norm_words import BatchNormMode
from convgen.problem.conv import Conv
from convgen.problem.dtype import Accuracy, AttentionLayout, Direction, DType, Layout, PadMode
from convgen.problem.epilogue import Activation, Epilogue, fold_batch_norm
from convgen.problem.forms import OPS, parse_problem, problem_from_json
from convgen.problem.pool import Pool
from convgen.problem.pool_words import PoolMode
from convgen.problem.protocol import Problem
from convgen.problem.size import RuntimeSize
from convgen.problem.sizes import Sizes
from convgen.problem.suite import SuiteEntry, expand_entry, load_suite, shipped_suites
from convgen.problem.tensor import TensorSpec

__all__ = [
    "OPS",
    "Accuracy",
    "Activation",
    "Align",
    "Attention",
    "AttentionLayout",
    "BatchNorm",
    "BatchNormMode",
    "Bias",
    "Conv",
    "DType",
    "Direction",
    "Epilogue",
    "Layout",
    "Mask",
    "PadMode",
    "Pool",
    "PoolMode",
    "Problem",
    "RuntimeSize",
    "Sizes",
    "SuiteEntry",
    "TensorSpec",
    "Varlen",
    "expand_entry",
    "fold_batch_norm",
    "load_suite",
    "parse_problem",
    "problem_from_json",
    "shipped_suites",
]
