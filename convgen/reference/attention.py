"""The right answer to an attention, in float64, and how far from it a right kernel may be.

Scores x[i, j] of a query and a key that it sees, weights w = softmax(x), o = w v. A kernel that computes scores with
errors of at most E, in fp32, and exponentials of their distance D = max(x) - x from the row's maximum, has weights that
are off by a factor within exp(±eta) of

    eta = E + 2 u |x| + 6 u D + 2^-20         u = 2^-24

because the exponential turns the absolute error of its argument into a relative one: a product of D by log2(e) and the
sum before it round by u D each, once where a weight is computed and once more where a later, larger maximum scales it
down (the steps of the maximum telescope to at most D). A kernel may scale scores and maximum apart: then the rounding
of the scaled maximum, u max(x) <= u (|x| + D), is in all weights computed with it, and differs from the last one's.
2^-20 are two hardware exponentials, and what an exponent loses by a shift that lags behind the maximum by a few units.
Since o is the weighted mean of v, what all weights of a row share cancels, and with d = exp(eta) - 1

    |o' - o| <= (sum of w d |v| + |o| sum of w d) / (1 - sum of w d)

and never more than |o| + max |v|. For the same reason errors may be counted from that of the heaviest key: eta is then
0 there and eta + eta(heaviest) elsewhere, which is nearer where scores and E are large and one key has all the weight.
Where the sum of w d is not below 1/2 either way, weights may be anything, and the bound is infinite.

Two sums of n terms follow, w v and w, each a chain that rounds n times by eps_acc; there the weights may be rounded to
the operands' type first (`Numerics.eps_in`), as tensor cores ask for, while their own sum takes them in fp32. Below the
smallest normal number of that type the rounding is absolute, which shows where n such weights stand beside the largest,
1.

E grows with the dot product of absolute values: |scale| |q| |k| (head_dim eps_acc + 2 u). So it is small for peaked
rows of short vectors, and large where large terms cancel. A softcap flattens it, and adds 8 u min(cap, 128 + |x|) for
its tanh; bias and ALiBi round once a term. A sink, which is not scaled, stands beside a maximum that three roundings
brought there.

lse = max + log(sum) inherits log(1 + d) of the weights, and the roundings of its last steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy

from convgen.plan import Numerics
from convgen.problem import Attention, DType
from convgen.problem.attention_words import Align, Bias, Mask
from convgen.reference.arrays import Array, Module, pieces, quiet
from convgen.reference.rounding import FORMATS, round_to
from convgen.reference.sampled import Indices

_U = DType.FP32.eps
_EXPONENTIAL = 2.0**-20
_TANH, _SMALL_CAP = 8 * _U, 128.0
"""The error of a tanh, and the softcap up to which it may be an absolute one."""
_LAST_STEPS = 16 * _U
"""Sums of a row's parts in the end, the reciprocal and the product with it."""
_MOST = 40.0
"""Above which a weight's logarithm says no more than that the weight may be anything."""
_HIDDEN, _EMPTY_ROW = 0.25, 0.1
"""Shares of hidden keys and of rows without a key in a random mask."""


# --- inputs --------------------------------------------------------------------------------------------------------


def make_inputs(problem: Attention, seed: int, kind: str = "normal", xp: Module = numpy) -> dict[str, Array]:
    """The problem's inputs by name, as float64 arrays in logical order that their tensors' dtypes hold exactly.

    normal          standard normal: scores of a random row spread by about 1
    positive        uniform in (0, 1): nothing cancels
    small_integers  -2 … 2 in q and k, -4 … 4 in v: products are exact, exponentials are not
    peaked          q and k 6 times as large: scores differ by hundreds, and nearly all of a row's weight is on one key
    specials        normal, but one in 70 elements of q is NaN or an infinity, one in 200 of k NaN, and one in ten of a
                    bias -infinity, which hides

    A mask hides a quarter of the keys, and all of them from a tenth of its rows. ALiBi's slopes are those of its paper.
    """
    generator = xp.random.default_rng(seed)
    made: dict[str, Array] = {}
    for spec in problem.inputs:
        if spec.name == "mask":
            seen = generator.random(spec.shape) >= _HIDDEN
            made[spec.name] = (seen & (generator.random((*spec.shape[:-1], 1)) >= _EMPTY_ROW)).astype(xp.float64)
            continue
        if spec.name == "alibi":
            values = 2.0 ** (-8.0 * (xp.arange(problem.heads_q) + 1) / problem.heads_q)
        elif kind == "positive":
            values = generator.random(spec.shape)
        elif kind == "small_integers":
            most = 2 if spec.name in ("q", "k") else 4
            values = generator.integers(-most, most + 1, size=spec.shape).astype(xp.float64)
        else:
            values = generator.standard_normal(spec.shape)
            if kind == "peaked" and spec.name in ("q", "k"):
                values = 6 * values
        made[spec.name] = round_to(values, spec.dtype, xp)
    if kind == "specials":
        _plant(made["q"], (xp.nan, xp.inf, -xp.inf), generator)
        _plant(made["k"], (xp.nan,), generator)
        if "bias" in made:
            _plant(made["bias"], (-xp.inf,) * 20, generator)
    return made


def _plant(values: Array, specials: tuple[float, ...], generator: Array) -> None:
    chosen = generator.integers(0, 200, size=values.shape)
    for number, special in enumerate(specials):
        values[chosen == number] = special


# --- the answer ----------------------------------------------------------------------------------------------------


def reference(problem: Attention, inputs: Mapping[str, Array], xp: Module = numpy) -> dict[str, Array]:
    """o (B, H_q, S_q, D_v), and lse (B, H_q, S_q) if the problem asks for it, in float64.

    `inputs` holds the problem's inputs by name in logical order, NumPy's or CuPy's as `xp` says; sizes known at run
    time are those of the arrays. What lies in k where a query does not see it never shows; v has to be finite, because
    a kernel multiplies it by a weight of 0. Not for varlen, paged and bprop problems.
    """
    fixed = problem_of(problem, inputs)
    found = {spec.name: xp.zeros(spec.shape) for spec in fixed.outputs}
    for rows in _every_row(fixed, inputs, xp):
        found["o"][rows.place] = rows.output()
        if fixed.lse:
            found["lse"][rows.place] = rows.lse(xp)
    return found


def reference_at(
    problem: Attention, inputs: Mapping[str, Array], indices: Mapping[str, Indices], xp: Module = numpy
) -> dict[str, Array]:
    """The elements of each output at its flat `indices`, as vectors of float64."""
    fixed = problem_of(problem, inputs)
    return _at(fixed, inputs, indices, lambda rows: (rows.output(), rows.lse(xp)), xp)


def bound(
    problem: Attention,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    xp: Module = numpy,
) -> dict[str, Array]:
    """The largest right |got - expected| of every element of each output; see the module's text. 0 where the answer is
    not finite, since it has to match exactly."""
    fixed = problem_of(problem, inputs)
    found = {spec.name: xp.zeros(spec.shape) for spec in fixed.outputs}
    for rows in _every_row(fixed, inputs, xp):
        errors = _errors(fixed, rows, numerics, xp)
        found["o"][rows.place] = errors[0]
        if fixed.lse:
            found["lse"][rows.place] = errors[1]
    return found


def bound_at(
    problem: Attention,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    indices: Mapping[str, Indices],
    xp: Module = numpy,
) -> dict[str, Array]:
    """The elements of `bound` at flat `indices` of each output."""
    fixed = problem_of(problem, inputs)
    return _at(fixed, inputs, indices, lambda rows: _errors(fixed, rows, numerics, xp), xp)


def problem_of(problem: Attention, inputs: Mapping[str, Array]) -> Attention:
    """The problem with the sizes of these arrays."""
    q, k = inputs["q"].shape, inputs["k"].shape
    return dataclasses.replace(problem, batch=q[0], seq_q=q[2], seq_kv=k[2])


# --- rows ----------------------------------------------------------------------------------------------------------

_Place: TypeAlias = tuple[int, Array, Array]
"""A batch element, and the head and the query of each of some rows. The heads of a place share one head of k and v."""


@dataclass(frozen=True)
class _Scores:
    """Scores of some queries of one batch element with every key of their head, (queries, keys), and how they came
    about."""

    values: Array
    """-inf where a key is not seen."""
    magnitude: Array
    """|scale| |q| |k|."""
    rounded: Array
    """What was rounded after the product, by magnitude."""


@dataclass(frozen=True)
class _Rows:
    """Those rows after the softmax. Arrays are (queries,), or (queries, keys) where they say so."""

    place: _Place
    """Batch element, and each row's head and query."""
    scores: _Scores
    values: Array
    """v, (keys, D_v)."""
    largest: Array
    """The largest score, or the sink if that is larger; 0 in rows that see no key."""
    weights: Array
    """(queries, keys)."""
    sink: Array
    """The sink's score, -inf if there is none; and its weight."""
    sink_weight: Array
    sums: Array
    """Of the exponentials of all scores less the largest. 0 in rows that see no key."""

    def output(self) -> Array:
        return self.weights @ self.values

    @quiet
    def lse(self, xp: Module) -> Array:
        return self.largest + xp.log(self.sums)


def _every_row(problem: Attention, inputs: Mapping[str, Array], xp: Module) -> Iterator[_Rows]:
    batch, queries, _ = problem.typical_sizes
    share = problem.heads_q // problem.heads_kv
    for index in range(batch * problem.heads_kv):
        element, head_kv = divmod(index, problem.heads_kv)
        for piece in _pieces(problem, share * queries):
            head, query = numpy.divmod(numpy.arange(piece.start, piece.stop), queries)
            yield _rows_of(problem, inputs, (element, xp.asarray(head_kv * share + head), xp.asarray(query)), xp)


def _pieces(problem: Attention, rows: int) -> Iterator[slice]:
    return pieces(rows, 150 * max(problem.typical_sizes[2], 1))


def _at(
    problem: Attention,
    inputs: Mapping[str, Array],
    indices: Mapping[str, Indices],
    values: Callable[[_Rows], tuple[Array, Array]],
    xp: Module,
) -> dict[str, Array]:
    """What `values` gives of o (queries, D_v) and lse (queries,), at flat indices of each."""
    queries = problem.typical_sizes[1]
    share = problem.heads_q // problem.heads_kv
    found: dict[str, Array] = {}
    for name, flat in indices.items():
        found[name] = xp.zeros(flat.size)
        batch, head, query, *column = numpy.unravel_index(flat, problem.tensor(name).shape)
        places = batch * problem.heads_kv + head // share
        for place in numpy.unique(places):
            members = numpy.flatnonzero(places == place)
            chosen, row = numpy.unique(head[members] * queries + query[members], return_inverse=True)
            for piece in _pieces(problem, chosen.size):
                heads, rows_queries = map(xp.asarray, numpy.divmod(chosen[piece], queries))
                rows = _rows_of(problem, inputs, (int(place) // problem.heads_kv, heads, rows_queries), xp)
                here = (row >= piece.start) & (row < piece.stop)
                at = (row[here] - piece.start, *(axis[members[here]] for axis in column))
                found[name][xp.asarray(members[here])] = values(rows)[name == "lse"][tuple(map(xp.asarray, at))]
    return found


@quiet
def _rows_of(problem: Attention, inputs: Mapping[str, Array], place: _Place, xp: Module) -> _Rows:
    batch, heads, _ = place
    scores = _scores(problem, inputs, place, xp)
    largest = _largest(scores.values, 1, -xp.inf, xp)
    empty = largest == -xp.inf
    sink = xp.where(empty, -xp.inf, xp.asarray(inputs["sink"])[heads] if problem.sink else -xp.inf)
    largest = xp.where(empty, 0.0, xp.maximum(largest, sink))
    exponentials, share = xp.exp(scores.values - largest[:, None]), xp.exp(sink - largest)
    sums = exponentials.sum(axis=1) + share
    divisor = xp.where(empty, 1.0, sums)
    v = xp.asarray(inputs["v"], dtype=xp.float64)[batch, _head_kv(problem, heads)]
    return _Rows(place, scores, v, largest, exponentials / divisor[:, None], sink, share / divisor, sums)


def _head_kv(problem: Attention, heads: Array) -> int:
    return int(heads[0]) * problem.heads_kv // problem.heads_q


def _scores(problem: Attention, inputs: Mapping[str, Array], place: _Place, xp: Module) -> _Scores:
    batch, heads, queries = place
    q = xp.asarray(inputs["q"][batch][heads, queries], dtype=xp.float64)
    k = xp.asarray(inputs["k"][batch, _head_kv(problem, heads)], dtype=xp.float64)
    scores, magnitude = problem.scale * (q @ k.T), abs(problem.scale) * (xp.abs(q) @ xp.abs(k).T)
    rounded = xp.zeros_like(scores)
    if problem.softcap:
        scores = problem.softcap * xp.tanh(scores / problem.softcap)
    if problem.bias is not Bias.NONE:
        added = _of_pairs(inputs["bias"], problem.bias, place)
        scores = scores + added
        rounded += xp.where(xp.isfinite(added), abs(scores) + abs(added), 0.0)
    distance, visible = _geometry(problem, queries, xp)
    if problem.alibi:
        added = -xp.asarray(inputs["alibi"])[heads][:, None] * abs(distance)
        scores = scores + added
        rounded += xp.where(xp.isfinite(scores), abs(scores), 0.0) + 2 * abs(added)
    if problem.mask is not Mask.NONE:
        visible = visible & (_of_pairs(inputs["mask"], problem.mask, place) != 0)
    return _Scores(xp.where(visible, scores, -xp.inf), magnitude, rounded)


def _largest(values: Array, axis: int, least: float, xp: Module) -> Array:
    """The largest along an axis, `least` if it has no elements; NaN if one of them is."""
    if values.shape[axis] == 0:
        return xp.full(values.shape[1 - axis], least)
    return xp.maximum(values.max(axis=axis), least)


def _geometry(problem: Attention, queries: Array, xp: Module) -> tuple[Array, Array]:
    """How far each key lies behind the diagonal of each query, and whether the window lets it see the key."""
    _, all_queries, keys = problem.typical_sizes
    offset = keys - all_queries if problem.align is Align.BOTTOM_RIGHT else 0
    distance = xp.arange(keys)[None] - (queries[:, None] + offset)
    left, right = problem.window
    seen = xp.ones(distance.shape, dtype=bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return distance, seen


def _of_pairs(array: Array, kind: Mask | Bias, place: _Place) -> Array:
    """A mask's or bias' rows of these heads and queries, (rows or 1, keys)."""
    batch, heads, queries = place
    match kind.value:
        case "key":
            return array[batch][None]
        case "pair":
            return array[queries]
        case "batch":
            return array[batch][queries]
        case "head":
            return array[heads, queries]
    return array[batch][heads, queries]


# --- the bound -----------------------------------------------------------------------------------------------------


@quiet
def _errors(problem: Attention, rows: _Rows, numerics: Numerics, xp: Module) -> tuple[Array, Array]:
    """Bounds of o and lse of these rows."""
    seen = rows.scores.values > -xp.inf
    count = seen.sum(axis=1)
    of_sink = 10 * _U * (rows.largest - rows.sink) + 3 * _U * abs(rows.sink) + _EXPONENTIAL
    # The sink is one key more.
    eta = xp.where(seen, _of_weights(problem, rows, numerics, xp), 0.0)
    eta = xp.concatenate((eta, xp.where(rows.sink > -xp.inf, of_sink, 0.0)[:, None]), axis=1)
    logarithms = xp.concatenate((rows.scores.values, rows.sink[:, None]), axis=1) - rows.largest[:, None]
    logarithms = logarithms - xp.log(xp.where(rows.sums > 0, rows.sums, 1.0))[:, None]
    heaviest = logarithms.argmax(axis=1)[:, None]
    of_heaviest = xp.take_along_axis(eta, heaviest, axis=1)
    from_heaviest = xp.where(xp.arange(eta.shape[1]) == heaviest, 0.0, eta + of_heaviest)
    moved, apart = _moved(logarithms, eta, xp), _moved(logarithms, from_heaviest, xp)
    nearer = apart.sum(axis=1) < moved.sum(axis=1)
    moved = xp.where(nearer[:, None], apart, moved)
    share = moved.sum(axis=1)

    output, magnitude = rows.output(), abs(rows.values)
    most = abs(output) + _largest(magnitude, 0, 0.0, xp)
    few = share < 0.5
    error = (moved[:, :-1] @ magnitude + abs(output) * share[:, None]) / xp.where(few, 1 - share, 1.0)[:, None]
    error = xp.where(few[:, None], xp.minimum(error, most), xp.inf)
    chain = (count * numerics.eps_acc + _LAST_STEPS)[:, None]
    operands = numerics.eps_in * (2 if problem.dtype is DType.TF32 else 1)
    error = error + (chain + operands) * (rows.weights @ magnitude) + chain * abs(output)
    divisor = xp.where(rows.sums > 0, rows.sums, 1.0)[:, None]
    error = error + _underflow(problem, numerics) * (seen @ magnitude) / divisor
    rounded = error + problem.out_dtype.eps * (abs(output) + error) + FORMATS[problem.out_dtype].smallest_subnormal

    lse = rows.lse(xp)
    shared = xp.where(nearer, of_heaviest[:, 0], 0.0)
    of_lse = xp.where(few, shared + share / xp.where(few, 1 - share, 1.0), eta.max(axis=1))
    of_lse = of_lse + chain[:, 0] + 8 * _U * (abs(rows.largest) + abs(lse))
    return xp.where(xp.isfinite(output), rounded, 0.0), xp.where(xp.isfinite(lse), of_lse, 0.0)


def _moved(logarithms: Array, eta: Array, xp: Module) -> Array:
    """By how much weights may grow whose logarithms are off by eta."""
    return xp.exp(xp.minimum(logarithms + eta, _MOST)) - xp.exp(logarithms)


def _of_weights(problem: Attention, rows: _Rows, numerics: Numerics, xp: Module) -> Array:
    """eta of each weight, as if all keys were seen."""
    operands = 2 * numerics.eps_in if problem.dtype is DType.TF32 else 0.0
    error = (problem.head_dim * numerics.eps_acc + operands + 2 * _U) * rows.scores.magnitude
    scores = abs(rows.scores.values)
    error = error + _U * (rows.scores.rounded + 2 * scores) + _TANH * xp.minimum(problem.softcap, _SMALL_CAP + scores)
    return error + 6 * _U * (rows.largest[:, None] - rows.scores.values) + _EXPONENTIAL


def _underflow(problem: Attention, numerics: Numerics) -> float:
    """The largest error of rounding a weight that is no normal number."""
    if numerics.eps_in and problem.dtype is DType.FP16:
        return FORMATS[DType.FP16].smallest_subnormal / 2
    return 2.0 ** FORMATS[DType.FP32].least_exponent
