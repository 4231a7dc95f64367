"""Plans to source text: the only user of Jinja2.

Templates lie in `templates/`, beside the package in a checkout and inside it in a wheel; one that a strategy outside
the package brings is named by its absolute path. Emitted text is deterministic: the same plan gives the same bytes.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jinja2
import jinja2.meta

from convgen.plan import Plan


def template_root() -> Path:
    """The folder of templates: `convgen/templates` in a wheel, `templates` beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "templates"
    return inside if inside.is_dir() else package.parent / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """The one Jinja environment: an unknown variable is an error, blocks leave no blank lines behind."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.FileSystemLoader(template_root()), jinja2.FunctionLoader(_absolute)]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _absolute(name: str) -> str | None:
    """The text of a template that a strategy outside the package brings, named by its path."""
    path = Path(name)
    return path.read_text(encoding="utf-8") if path.is_absolute() and path.is_file() else None


def render(plan: Plan) -> str:
    """The plan's CUDA source, self-contained: device headers are written out in it."""
    text = environment().get_template(plan.template).render(**plan.constants)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text))


def template_variables(template: str) -> frozenset[str]:
    """Every variable the template and the files it includes take from a strategy's constants."""
    env = environment()
    names: set[str] = set()
    for file in template_files(template):
        names |= jinja2.meta.find_undeclared_variables(env.parse(file.read_text(encoding="utf-8")))
    return frozenset(names)


def template_files(template: str) -> tuple[Path, ...]:
    """The template and all that it includes, in a fixed order; none if there is no template of that name."""
    env = environment()
    found: dict[str, Path] = {}
    pending = [template]
    while pending:
        name = pending.pop()
        file = template_root() / name
        if name in found or not file.is_file():
            continue
        found[name] = file
        tree = env.parse(file.read_text(encoding="utf-8"))
        pending += [t for t in jinja2.meta.find_referenced_templates(tree) if t is not None]
    return tuple(found[name] for name in sorted(found))
