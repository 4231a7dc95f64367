"""A plan as C: a header that runs it through the CUDA driver API, and a small program that checks it."""

from __future__ import annotations

from typing import Any

from convgen.binding import (
    TENSOR_MAP_SWIZZLES,
    TENSOR_MAP_TYPES,
    TEXTURE_FORMATS,
    dynamic_shared,
    nbytes_of,
    required_alignment,
    symbolic_shape,
    symbols,
    textures,
)
from convgen.plan import Plan
from convgen.problem import Conv, Direction
from convgen.render import environment

_BYTES_A_LINE = 24

# Bytes, exponent bits, mantissa bits, signed: what the example needs to encode and decode an element.
_ELEMENTS = {
    "fp32": (4, 8, 23, 1),
    "fp16": (2, 5, 10, 1),
    "bf16": (2, 8, 7, 1),
    "fp8": (1, 4, 3, 1),
    "int8": (1, 0, 0, 1),
    "uint8": (1, 0, 0, 0),
    "int32": (4, 0, 0, 1),
}


def launcher_files(plan: Plan, cubin: bytes) -> dict[str, str]:
    """The launcher's files, name to text: `NAME.h`, `NAME_cubin.h` and `NAME_example.c`."""
    name = plan.name
    context = _context(plan)
    rows = [list(cubin[start : start + _BYTES_A_LINE]) for start in range(0, len(cubin), _BYTES_A_LINE)]
    return {
        f"{name}.h": _template("launcher.h.j2", context),
        f"{name}_cubin.h": _template(
            "cubin.h.j2", {"name": name, "arch": plan.target.arch, "size": len(cubin), "rows": rows}
        ),
        **_example(plan, context),
    }


def _example(plan: Plan, context: dict[str, Any]) -> dict[str, str]:
    """A program that runs the launcher and checks it, where the definition fits in one: for convolutions."""
    if not isinstance(plan.problem, Conv):
        return {}
    text = _template("example.c.j2", context | _example_context(plan, plan.problem))
    return {f"{plan.name}_example.c": text}


def _template(name: str, context: dict[str, Any]) -> str:
    return environment().get_template(f"launcher/{name}").render(**context)


def _context(plan: Plan) -> dict[str, Any]:
    tensors = (*plan.inputs, *plan.outputs)
    sizes = plan.problem.runtime_sizes
    shapes = {t.name: symbolic_shape(plan.problem, t.name) for t in tensors}
    used = textures(plan)
    return {
        "name": plan.name,
        "plan": plan,
        "problem": plan.problem,
        "arch": plan.target.arch,
        "sizes": {name: plan.problem.sizes[name] for name in sizes},
        "tensors": tensors,
        "shapes": shapes,
        "alignments": {t.name: required_alignment(plan, t) for t in tensors},
        "symbols": symbols(plan),
        "textures": used,
        "texture_formats": {arg.tensor: TEXTURE_FORMATS[plan.problem.tensor(arg.tensor).dtype] for arg in used},
        "map_types": TENSOR_MAP_TYPES,
        "map_swizzles": TENSOR_MAP_SWIZZLES,
        "dynamic_shared": dynamic_shared(plan),
        "nbytes": lambda place: nbytes_of(plan, place),
        "kind": lambda thing: type(thing).__name__,
    }


def _example_context(plan: Plan, problem: Conv) -> dict[str, Any]:
    tensors = (*plan.inputs, *plan.outputs)
    # The image is the tensor that is padded and strided over: x of a convolution, y of a transposed one.
    image, feature = ("y", "x") if problem.transposed else ("x", "y")
    gradients = {Direction.DGRAD: {"x": "dx", "y": "dy"}, Direction.WGRAD: {"w": "dw", "y": "dy"}}
    named = gradients.get(problem.direction, {})
    missing = 3 - problem.nd
    return {
        "image": named.get(image, image),
        "feature": named.get(feature, feature),
        "filter": named.get("w", "w"),
        "result": plan.outputs[0].name,
        "batched": [t.name for t in tensors if symbolic_shape(problem, t.name)[0] == "n"],
        "padded_shapes": {t.name: _five(t.shape, 1, missing) for t in tensors},
        "padded_strides": {t.name: _five(t.strides, 0, missing) for t in tensors},
        "elements": {t.name: _ELEMENTS[t.dtype] for t in tensors},
        "axes": {
            "stride": (1,) * missing + problem.stride,
            "dilation": (1,) * missing + problem.dilation,
            "pad_lo": (0,) * missing + problem.pad_lo,
        },
        "output_eps": plan.outputs[0].dtype.eps,
    }


def _five(values: tuple[int, ...], fill: int, missing: int) -> tuple[int, ...]:
    """The values of a tensor with its missing spatial dimensions put in front; a vector fills all but the first."""
    if len(values) == 1:
        return (*values, *(fill,) * 4)
    return (*values[:2], *(fill,) * missing, *values[2:])
