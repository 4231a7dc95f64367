"""The float64 oracle: what a problem's answer is, and how far from it a right kernel may be.

    inputs = make_inputs(problem, seed=0)
    expected = reference(problem, inputs)
    limit = bound(problem, inputs, expected, strict_model(problem))
    outcome = compare(problem.outputs[0], got, expected, limit)

Runs on NumPy arrays or, with `xp=cupy`, on CuPy's. For tensors too large to compute whole: `sample_indices`,
`reference_sampled`, and `indices=` of `bound` and `compare`.
"""

from convgen.reference.bounds import ErrorModel, bound, exact_numerics, model_of, reduction_length, strict_model
from convgen.reference.compare import Comparison, Element, compare, joined
from convgen.reference.definition import Definition, definition_of, terms
from convgen.reference.inputs import InputKind, make_inputs
from convgen.reference.oracle import reference, reference_sampled, sample_indices
from convgen.reference.rounding import decode, encode, round_to

__all__ = [
    "Comparison",
    "Definition",
    "Element",
    "ErrorModel",
    "InputKind",
    "bound",
    "compare",
    "decode",
    "definition_of",
    "encode",
    "exact_numerics",
    "joined",
    "make_inputs",
    "model_of",
    "reduction_length",
    "reference",
    "reference_sampled",
    "round_to",
    "sample_indices",
    "strict_model",
    "terms",
]
