"""Attention as a problem: what to compute, nothing of how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from convgen.problem import attention_form, attention_rules, values
from convgen.problem.attention_words import Align, Bias, Mask, Varlen
from convgen.problem.dtype import Accuracy, AttentionLayout, Direction, DType
from convgen.problem.size import RuntimeSize
from convgen.problem.sizes import Sizes
from convgen.problem.tensor import TensorSpec
from convgen.problem.text import refusal

__all__ = ["Attention"]

Size = int | RuntimeSize


@dataclass(frozen=True)
class Attention:
    """o = softmax(scores) v, for each batch and query head h, which reads key and value head h * heads_kv // heads_q.

    scores = scale * q k^T, then softcap * tanh(scores / softcap) if softcap > 0, then + bias and alibi, then -inf
    where the window or the mask hides a key, then a learned sink logit for each head joins the softmax's denominator.
    Query i sees keys i + offset - window[0] … i + offset + window[1], None being unbounded; the offset is
    seq_kv - seq_q (`align` bottom_right) or 0 (top_left). Causal attention is window[1] = 0.
    ALiBi adds -slope[head] * |i + offset - j|. A row that sees no key is 0, its logsumexp -inf. `lse` asks for the
    natural logarithm of each row's sum of exponentials, in fp32.

    `varlen` sequences have lengths of at most seq_q and seq_kv, which set the offset; `paged` is the number of tokens
    in a page of the key-value cache, 0 for none. `batch`, `seq_q` and `seq_kv` may be RuntimeSizes: `inputs`,
    `outputs`, `macs` and `bytes` then stand for the typical ones; `at` fixes them.
    Direction is fprop, or bprop for dq, dk and dv together.

    Build one with `Attention.of`, `Attention.parse` or `Attention.from_json`. Raises ProblemError for what means
    nothing.
    """

    kind: ClassVar[str] = "attention"

    batch: Size
    heads_q: int
    heads_kv: int
    seq_q: Size
    seq_kv: Size
    head_dim: int
    head_dim_v: int
    window: tuple[int | None, int | None]
    align: Align
    softcap: float
    scale: float
    dtype: DType
    out_dtype: DType
    layout: AttentionLayout
    direction: Direction
    mask: Mask
    bias: Bias
    alibi: bool
    sink: bool
    varlen: Varlen
    paged: int
    lse: bool
    accuracy: Accuracy

    def __post_init__(self) -> None:
        attention_rules.check(self)

    @classmethod
    def of(
        cls,
        *,
        heads_q: int,
        seq_q: int | str | RuntimeSize,
        head_dim: int,
        batch: int | str | RuntimeSize = 1,
        heads_kv: int | None = None,
        seq_kv: int | str | RuntimeSize | None = None,
        head_dim_v: int | None = None,
        causal: str | None = None,
        window: Sequence[int | None] = (None, None),
        align: str | None = None,
        softcap: float = 0.0,
        scale: float | None = None,
        dtype: str = DType.FP32,
        out_dtype: str | None = None,
        layout: str = AttentionLayout.BHSD,
        direction: str = Direction.FPROP,
        mask: str = Mask.NONE,
        bias: str = Bias.NONE,
        alibi: bool = False,
        sink: bool = False,
        varlen: str = Varlen.NONE,
        paged: int = 0,
        lse: bool = False,
        accuracy: str = Accuracy.STRICT,
    ) -> Self:
        """Build from the values of the text form: `Attention.of(heads_q=32, heads_kv=8, seq_q=4096, head_dim=128,
        causal="bottom_right")`.

        heads_kv, seq_kv and head_dim_v default to heads_q, seq_q and head_dim; scale to 1 / sqrt(head_dim). `causal`
        closes the window's right side and sets `align`, which is bottom_right unless said. Raises ProblemError.
        """
        left, right = attention_form.window_of(window)
        if causal is not None:
            if align is not None and align != causal:
                raise refusal("align", align, f"{causal} as in causal, or no align")
            align, right = values.word("causal", causal, Align), 0
        kind = values.word("dtype", dtype, DType, attention_rules.DTYPES)
        width = values.size("head_dim", head_dim, at_least=1)
        queries = values.runtime_size("seq_q", seq_q)
        return cls(
            batch=values.runtime_size("batch", batch),
            heads_q=heads_q,
            heads_kv=heads_q if heads_kv is None else heads_kv,
            seq_q=queries,
            seq_kv=queries if seq_kv is None else values.runtime_size("seq_kv", seq_kv),
            head_dim=width,
            head_dim_v=width if head_dim_v is None else head_dim_v,
            window=(left, right),
            align=Align.BOTTOM_RIGHT if align is None else values.word("align", align, Align),
            softcap=values.number("softcap", softcap),
            scale=attention_form.default_scale(width) if scale is None else values.number("scale", scale),
            dtype=kind,
            out_dtype=kind.default_output
            if out_dtype is None
            else values.word("out_dtype", out_dtype, DType, attention_rules.OUT_DTYPES),
            layout=attention_form.layout_of(layout),
            direction=values.direction(direction, attention_rules.DIRECTIONS),
            mask=values.word("mask", mask, Mask),
            bias=values.word("bias", bias, Bias),
            alibi=values.flag("alibi", alibi),
            sink=values.flag("sink", sink),
            varlen=values.word("varlen", varlen, Varlen),
            paged=paged,
            lse=values.flag("lse", lse),
            accuracy=values.word("accuracy", accuracy, Accuracy),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `attention batch=1 heads_q=32 heads_kv=8 seq_q=4096 head_dim=128 causal=bottom_right …`. Raises
        ProblemError."""
        return cls.of(**attention_form.from_text(text))

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """Build from a decoded JSON object with the keys of the text form. Raises ProblemError."""
        return cls.of(**attention_form.from_json(entry))

    def to_json(self) -> dict[str, Any]:
        """The JSON form, which `from_json` reads back equal."""
        return attention_form.to_json(self)

    def __str__(self) -> str:
        return attention_form.to_text(self)

    # --- sizes ---------------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """The op's name in the text form."""
        return attention_form.OP

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a key after its own."""
        return self.window[1] == 0

    @property
    def typical_sizes(self) -> tuple[int, int, int]:
        """Batch, query and key lengths, or those to tune for."""
        batch, queries, keys = (
            size.typical if isinstance(size, RuntimeSize) else size for size in (self.batch, self.seq_q, self.seq_kv)
        )
        return batch, queries, keys

    def at(self, *, batch: int | None = None, seq_q: int | None = None, seq_kv: int | None = None) -> Self:
        """The same problem with the given sizes fixed. Raises ProblemError for a size outside its bound."""
        fixed = {
            name: size for name, size in (("batch", batch), ("seq_q", seq_q), ("seq_kv", seq_kv)) if size is not None
        }
        for name, size in fixed.items():
            limit = getattr(self, name)
            if values.size(name, size) and isinstance(limit, RuntimeSize) and limit.bound and size > limit.bound:
                raise refusal(name, size, f"at most {limit.bound}, the bound of the runtime size")
        changes: dict[str, Any] = dict(fixed)
        return dataclasses.replace(self, **changes)

    @property
    def accumulate(self) -> bool:
        """See `protocol.Problem`; likewise what follows."""
        return False

    @property
    def layout_name(self) -> str:
        return self.layout.value

    @property
    def runtime_sizes(self) -> tuple[str, ...]:
        return tuple(name for name in ("batch", "seq_q", "seq_kv") if isinstance(getattr(self, name), RuntimeSize))

    @property
    def sizes(self) -> Sizes:
        batch, queries, keys = self.typical_sizes
        return Sizes.of(batch=batch, seq_q=queries, seq_kv=keys)

    @property
    def largest(self) -> Sizes | None:
        found: dict[str, int] = {}
        for name in ("batch", "seq_q", "seq_kv"):
            size = getattr(self, name)
            limit = size.bound if isinstance(size, RuntimeSize) else size
            if limit is None:
                return None
            found[name] = limit
        return Sizes.of(**found)

    def with_sizes(self, sizes: Sizes) -> Self:
        return self.at(**sizes.as_dict())

    def sizes_of(self, shape: Callable[[str], tuple[int, ...]]) -> Sizes:
        # Shapes of the wrong rank are told by whoever checks the arrays against the fixed problem.
        q, k = (*shape("q"), 0, 0, 0)[:3], (*shape("k"), 0, 0, 0)[:3]
        return Sizes.of(batch=q[0], seq_q=q[2], seq_kv=k[2])

    # --- work ----------------------------------------------------------------------------------------

    @property
    def visible_pairs(self) -> int:
        """Pairs of a query and a key that the window lets it see, for one batch and head; the mask hides none here."""
        _, queries, keys = self.typical_sizes
        offset = keys - queries if self.align is Align.BOTTOM_RIGHT else 0
        left, right = self.window
        above = queries * keys if right is None else _pairs_up_to(offset + right, queries, keys)
        below = 0 if left is None else _pairs_up_to(offset - left - 1, queries, keys)
        return above - below

    @property
    def macs(self) -> int:
        """Multiply-adds of the visible pairs: the products q k and p v; for bprop q k again, dv, dp, dq and dk."""
        width = self.head_dim + self.head_dim_v
        if self.direction is Direction.BPROP:
            width = 3 * self.head_dim + 2 * self.head_dim_v
        return self.typical_sizes[0] * self.heads_q * self.visible_pairs * width

    @property
    def flops(self) -> int:
        """Two for each multiply-add; the softmax is not counted."""
        return 2 * self.macs

    @property
    def bytes(self) -> int:
        """Compulsory traffic: every input read once and every output written once, hidden keys included."""
        return sum(tensor.nbytes for tensor in (*self.inputs, *self.outputs))

    # --- tensors -------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """q, k, v, then what the options need: mask, bias, alibi, sink, lengths, block_table; for bprop o, do, lse too.

        Packed sequences are (1, H, batch * seq, D), the most there can be. A paged cache is (pages, H_kv, paged, D)
        with one page for each that a sequence of seq_kv fills, and block_table (B, pages of a sequence).
        """
        storage = self.dtype.storage
        q, k, v, o, lse = self._shapes
        tensors = [self._spec("q", q, storage), self._spec("k", k, storage), self._spec("v", v, storage)]
        tensors += [self._spec(name, shape, dtype) for name, shape, dtype in self._option_shapes()]
        if self.direction is Direction.BPROP:
            tensors += [self._spec("o", o, self.out_dtype), self._spec("do", o, self.out_dtype)]
            tensors += [self._spec("lse", lse, DType.FP32)]
        return tuple(tensors)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """fprop: o, and lse (B, H_q, S_q) in fp32 if asked for; bprop: dq, dk, dv."""
        q, k, v, o, lse = self._shapes
        if self.direction is Direction.BPROP:
            return tuple(self._spec(name, shape, self.out_dtype) for name, shape in (("dq", q), ("dk", k), ("dv", v)))
        output = self._spec("o", o, self.out_dtype)
        return (output, self._spec("lse", lse, DType.FP32)) if self.lse else (output,)

    def tensor(self, name: str) -> TensorSpec:
        """The input or output of that name. Raises KeyError."""
        return {spec.name: spec for spec in (*self.inputs, *self.outputs)}[name]

    @property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        batch, queries, keys = self.typical_sizes
        sequences = (1, batch) if self.varlen is Varlen.PACKED else (batch, 1)
        rows = (sequences[0], self.heads_q, sequences[1] * queries)
        cache = (sequences[0], self.heads_kv, sequences[1] * keys)
        if self.paged:
            cache = (batch * -(-keys // self.paged), self.heads_kv, self.paged)
        return (
            (*rows, self.head_dim),
            (*cache, self.head_dim),
            (*cache, self.head_dim_v),
            (*rows, self.head_dim_v),
            rows,
        )

    def _option_shapes(self) -> list[tuple[str, tuple[int, ...], DType]]:
        batch, queries, keys = self.typical_sizes
        pairs = {
            "key": (batch, keys),
            "pair": (queries, keys),
            "batch": (batch, queries, keys),
            "head": (self.heads_q, queries, keys),
            "full": (batch, self.heads_q, queries, keys),
        }
        options: list[tuple[str, tuple[int, ...], DType]] = []
        if self.mask is not Mask.NONE:
            options.append(("mask", pairs[self.mask], DType.UINT8))
        if self.bias is not Bias.NONE:
            options.append(("bias", pairs[self.bias], DType.FP32 if self.dtype.itemsize == 1 else self.dtype.storage))
        if self.alibi:
            options.append(("alibi", (self.heads_q,), DType.FP32))
        if self.sink:
            options.append(("sink", (self.heads_q,), DType.FP32))
        if self.varlen is not Varlen.NONE:
            entries = batch + 1 if self.varlen is Varlen.PACKED else batch
            prefix = "offsets" if self.varlen is Varlen.PACKED else "lengths"
            options += [(f"{prefix}_{side}", (entries,), DType.INT32) for side in ("q", "kv")]
        if self.paged:
            options.append(("block_table", (batch, -(-keys // self.paged)), DType.INT32))
        return options

    def _spec(self, name: str, shape: tuple[int, ...], dtype: DType) -> TensorSpec:
        # Everything but the (B, H, S, D) tensors is dense in logical order; a full mask or bias too.
        tensors = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
        return TensorSpec(name, shape, dtype, self.layout if name in tensors else AttentionLayout.BHSD)


def _pairs_up_to(diagonal: int, queries: int, keys: int) -> int:
    # Pairs with key - query <= diagonal: the sum over queries of clamp(query + diagonal + 1, 0, keys), in closed form.
    def triangle(side: int) -> int:
        return side * (side + 1) // 2 if side > 0 else 0

    last = queries + diagonal
    return triangle(last) - triangle(diagonal) - triangle(last - keys) + triangle(diagonal - keys)
