"""Imports point one way, and each outside library is imported by the part that owns it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "convgen"

# A module may import from its own layer and from those above it in this list.
LAYERS = (
    ("errors", "toolkit", "host_memory"),
    ("problem", "target", "space", "tensor_map", "plan", "cache", "files"),
    ("gather", "binding"),
    ("strategies",),
    ("lowering", "render", "reference"),
    ("compiler", "resources", "launcher", "artifact", "simulator", "runtime", "measure", "processes", "ratios"),
    ("verify", "crossover", "explain", "explain_attention", "doctor", "accuracy"),
    ("tuner",),
    ("bench",),
    ("api",),
    ("cli", "__init__", "__main__"),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

OWNERS = {
    "jinja2": {"render"},
    "cupy": {"toolkit", "bench"},
    "cupyx": {"reference"},
    "cuda": {"compiler", "runtime"},
    "elftools": {"simulator"},
    "ziglang": {"simulator"},
    "optuna": {"tuner"},
    "threadpoolctl": {"tuner"},
    "rich": {"cli"},
    "torch": {"bench"},
    "cudnn": {"bench"},
    "matplotlib": {"bench"},
    "tuning_db": {"tuner", "bench", "api", "cli"},
}
"""Outside libraries and the parts that may import them."""

STANDARD = {"numpy"}
"""Outside libraries that any part may import."""


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted module, whether it is only imported for type checking) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node in typing_only
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield f"{node.module}", node in typing_only
            for alias in node.names:
                if node.module == "convgen" and alias.name in LEVEL:
                    yield f"convgen.{alias.name}", node in typing_only


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = _part(path)
    for module, typing_only in _imports(path):
        top, _, rest = module.partition(".")
        if top != "convgen" or not rest or typing_only:
            continue
        imported = rest.split(".")[0]
        assert LEVEL[imported] <= LEVEL[part], f"{part} imports {imported}, which lies in a later layer"


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_outside_libraries_have_owners(path: Path) -> None:
    for module, typing_only in _imports(path):
        top = module.partition(".")[0]
        if top == "convgen" or top in sys.stdlib_module_names or top in STANDARD or typing_only:
            continue
        assert _part(path) in OWNERS[top], f"{path.name} imports {top}"


def test_parts_do_not_import_one_another_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in _modules():
        wanted = {m.split(".")[1] for m, typing_only in _imports(path) if m.startswith("convgen.") and not typing_only}
        edges.setdefault(_part(path), set()).update(wanted - {_part(path)})
    while leaves := [part for part, wanted in edges.items() if not wanted]:
        for leaf in leaves:
            del edges[leaf]
        for wanted in edges.values():
            wanted.difference_update(leaves)
    assert not edges, f"these import one another in a circle: {edges}"


def test_no_file_is_longer_than_500_lines() -> None:
    folders = (PACKAGE, *(PACKAGE.parent / name for name in ("tuning_db", "templates", "tests")))
    files = [f for folder in folders for f in folder.rglob("*") if f.suffix in (".py", ".j2", ".cuh", ".h", ".cpp")]
    long = {str(f.relative_to(PACKAGE.parent)): n for f in files if (n := len(f.read_text().splitlines())) > 500}
    assert not long


def test_the_tuning_database_stands_beside() -> None:
    for path in sorted((PACKAGE.parent / "tuning_db").rglob("*.py")):
        for module, _ in _imports(path):
            top = module.partition(".")[0]
            assert top in {"tuning_db", "sqlalchemy"} | sys.stdlib_module_names, f"{path.name} imports {module}"
