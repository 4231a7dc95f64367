"""What `import convgen` costs and offers."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

import convgen
from convgen import problem, reference, strategies

HEAVY = ("numpy", "cupy", "cuda", "jinja2", "optuna", "sqlalchemy", "dataclasses", "convgen.problem")


def _loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=_path())
    return set(done.stdout.split())


def _path() -> dict[str, str]:
    # -S keeps the `.pth` files of other packages from importing things of their own.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_importing_the_package_loads_nothing_else() -> None:
    assert not _loaded_after("import convgen") & set(HEAVY)


@pytest.mark.parametrize("name", ["Conv", "parse_problem", "Target", "lower", "all_strategies"])
def test_describing_and_lowering_needs_neither_cuda_nor_jinja(name: str) -> None:
    assert not _loaded_after(f"import convgen; convgen.{name}") & {"cupy", "cuda", "jinja2", "numpy"}


def test_the_command_line_can_be_interrupted_before_it_loads_anything() -> None:
    assert not _loaded_after("import convgen.cli") & {"numpy", "convgen.cli.parser"}


def test_the_command_line_starts_without_cuda() -> None:
    assert not _loaded_after("import convgen.cli.parser") & {"cupy", "cuda"}


def test_the_example_of_the_package_runs() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = (convgen.__doc__ or "").splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in lines if line.startswith("    ")), names)
    assert names["plan"].name in names["source"]
    assert names["binary"].kernel(names["plan"].name).registers > 0


def test_public_names_are_sorted_and_exist() -> None:
    assert convgen.__all__ == sorted(convgen.__all__)
    assert all(getattr(convgen, name) is not None for name in convgen.__all__)


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse(inspect.getsource(convgen))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == convgen.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        convgen.no_such_name  # noqa: B018


def test_modules_state_their_public_names() -> None:
    for module in (problem, reference, strategies):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)
