"""What a tuned result is filed under: the problem and the GPU, and what its code depends on."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from convgen.cache import content_key
from convgen.compiler import nvrtc_version
from convgen.measure import PROTOCOL
from convgen.problem import Problem
from convgen.render import template_files
from convgen.strategies import Strategy, all_strategies
from convgen.target import Target
from tuning_db import Task, Toolchain

_parsing = threading.Lock()  # Python 3.11 counts the depth of all threads' syntax trees as one, and raises

SIMULATED = "sim-"
"""Prefix of a device whose times are a cost model's: they never serve a GPU."""


def task_of(problem: Problem, target: Target, family: str = "", *, simulated: bool = False) -> Task:
    """What is looked up and recorded for a problem on a target."""
    major, minor = target.compute_capability
    return Task(
        problem=str(problem),
        op=problem.op,
        direction=problem.direction.value,
        dtype=problem.dtype.value,
        layout=problem.layout_name,
        device=f"{SIMULATED}{target.name}" if simulated else target.name,
        capability=f"{major}.{minor}",
        sm_count=target.sm_count,
        family=family,
    )


def toolchains(strategies: Iterable[Strategy] | None = None) -> Mapping[str, Toolchain]:
    """By strategy: its code as it is now, the compiler, and the way of timing. Raises DeviceError without NVRTC."""
    major, minor = nvrtc_version()
    chosen = all_strategies() if strategies is None else tuple(strategies)
    return {s.name: Toolchain(codegen_hash(s), f"NVRTC {major}.{minor}", PROTOCOL) for s in chosen}


def codegen_hash(strategy: Strategy) -> str:
    """A hash of the Python modules and templates that a strategy's kernels are made by.

    Those are its module with all of `convgen.strategies` and `convgen.gather` that it imports, and its template with
    all that it includes. Other strategies' files are not among them: editing one leaves the rest trusted.
    """
    return _hash_of(type(strategy).__module__, strategy.template)


@functools.cache
def _hash_of(module: str, template: str) -> str:
    files = [*_module_files(module), *template_files(template)]
    return content_key(*(part for file in files for part in (file.name, file.read_bytes())))[:16]


def _module_files(start: str) -> list[Path]:
    pending, found = [start], dict[str, Path]()
    while pending:
        module = pending.pop()
        if module in found or not (file := _file_of(module)):
            continue
        found[module] = file
        for imported in _imports(file):
            if imported == "convgen.gather" or imported.startswith("convgen.strategies."):
                pending.append(imported)
    return [found[module] for module in sorted(found)]


def _file_of(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None) if loaded else getattr(importlib.util.find_spec(module), "origin", None)
    return Path(origin) if origin else None


@functools.cache
def _imports(file: Path) -> tuple[str, ...]:
    found: list[str] = []
    with _parsing:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            if node.module == "convgen.strategies":
                found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)
