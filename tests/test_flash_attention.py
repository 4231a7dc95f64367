"""flash_attention, by the conformance suite and in what is its own."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from attention_conformance import TARGET, AttentionConformance, require_right

from convgen.errors import ConfigError
from convgen.lowering import lower
from convgen.problem import Attention
from convgen.render import render
from convgen.runtime.sim import build
from convgen.simulator import Mode
from convgen.strategies import flash_attention
from convgen.strategies.flash_tiling import FlashAttentionConfig
from convgen.target import Target

STRATEGY = flash_attention.STRATEGY
MMA = FlashAttentionConfig("mma", 1, 2, 1, 32, 1, False, False, 1)


def changed(**fields: object) -> FlashAttentionConfig:
    return dataclasses.replace(MMA, **fields)  # type: ignore[arg-type]


class TestFlashAttention(AttentionConformance):
    strategy = STRATEGY

    def test_every_tiling_is_right(self) -> None:
        """Each tunable away from the others, on a problem that fills no tile."""
        text = "batch=2 heads_q=6 heads_kv=2 seq_q=45 seq_kv=100 head_dim=40 head_dim_v=24 causal=bottom_right lse=yes"
        configs = [
            MMA,
            changed(row_tiles=2),
            changed(warps_q=4),
            changed(warps_kv=2),
            changed(warps_q=1, warps_kv=4, block_kv=64),
            changed(block_kv=80),
            changed(buffers=2),
            changed(buffers=3),
            changed(q_in_registers=True),
            changed(pack_heads=True),
            changed(splits=3),
            changed(row_tiles=2, warps_kv=2, buffers=2, q_in_registers=True, pack_heads=True, splits=4),
        ]
        configs += [
            dataclasses.replace(c, products="fma", q_in_registers=False) for c in configs if not c.q_in_registers
        ]
        require_right([self.case(f"{text} dtype=bf16", config) for config in configs])

    def test_every_semantic_is_right_with_parts_and_packed_heads(self) -> None:
        shape = "batch=2 heads_q=6 heads_kv=2 seq_q=9 seq_kv=70 head_dim=16 dtype=fp16 lse=yes"
        words = (
            "mask=full",
            "bias=head",
            "alibi=yes causal=bottom_right",
            "sink=yes",
            "sink=yes window=2:0",
            "softcap=3",
        )
        config = changed(pack_heads=True, splits=3, warps_kv=2, warps_q=1)
        require_right([self.case(f"{shape} {word}", config) for word in words])

    def test_a_sink_beyond_every_score(self) -> None:
        """Its exponential overflows against the largest score: o is 0, lse the sink."""
        text = "attention heads_q=1 seq_q=4 seq_kv=8 head_dim=8 sink=yes lse=yes dtype=fp16 out_dtype=fp32"
        problem = Attention.parse(text)
        ones = np.ones((1, 1, 8, 8), np.float16)
        inputs = {"q": ones[:, :, :4], "k": ones, "v": ones, "sink": np.array([500.0], np.float32)}
        for splits in (1, 2):
            plan = lower(problem, self.strategy, changed(splits=splits, block_kv=16), TARGET)
            o, lse = np.empty((1, 1, 4, 8), np.float32), np.empty((1, 1, 4), np.float32)
            build([plan], [render(plan)])[0].run(inputs, {"o": o, "lse": lse}).require_clean()
            assert (o == 0).all()
            assert (lse == 500).all()

    def test_hidden_keys_of_nan_do_not_show(self) -> None:
        problem = Attention.parse("attention heads_q=1 seq_q=20 head_dim=8 mask=key dtype=fp16")
        plan = lower(problem, self.strategy, MMA, TARGET)
        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal((1, 1, 20, 8)).astype(np.float16) for _ in range(3))
        mask = np.ones((1, 20), np.uint8)
        mask[0, 5] = 0
        found = []
        for hidden in (0.0, np.nan, np.inf):
            k[0, 0, 5] = hidden
            o = np.empty((1, 1, 20, 8), np.float16)
            build([plan], [render(plan)])[0].run({"q": q, "k": k, "v": v, "mask": mask}, {"o": o}).require_clean()
            found.append(o)
        assert np.isfinite(found[0]).all()
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[2], found[0])

    def test_answers_do_not_depend_on_the_batch(self) -> None:
        """The same bits for a sequence alone and among others, parts of the keys included."""
        problem = Attention.parse("attention batch=* heads_q=4 heads_kv=2 seq_q=1 seq_kv=*~90 head_dim=16 dtype=bf16")
        plan = lower(problem, self.strategy, changed(splits=3, pack_heads=True), TARGET)
        [program] = build([plan], [render(plan)])
        rng = np.random.default_rng(1)
        q, k, v = (
            rng.integers(15000, 16300, shape).astype(np.uint16)
            for shape in ((3, 4, 1, 16), (3, 2, 90, 16), (3, 2, 90, 16))
        )
        together = np.empty((3, 4, 1, 16), np.uint16)
        program.run({"q": q, "k": k, "v": v}, {"o": together}).require_clean()
        for b in range(3):
            alone = np.empty((1, 4, 1, 16), np.uint16)
            program.run({"q": q[b : b + 1], "k": k[b : b + 1], "v": v[b : b + 1]}, {"o": alone}).require_clean()
            np.testing.assert_array_equal(alone[0], together[b])

    @pytest.mark.parametrize("group", [3, 5, 7, 16])
    def test_any_number_of_heads_a_key_head(self, group: int) -> None:
        shape = f"heads_q={2 * group} heads_kv=2 seq_q=1 seq_kv=40 head_dim=16 causal=bottom_right dtype=fp16"
        require_right([self.case(shape), self.case(shape, changed(pack_heads=True))])

    def test_blocks_that_no_row_sees_are_skipped(self) -> None:
        """A window of 16 keys visits at most 3 of 32 blocks: the simulator counts the products."""

        def flops(words: str) -> int:
            problem = Attention.parse(f"attention heads_q=1 seq_q=512 head_dim=16 dtype=fp16 {words}")
            plan = lower(problem, self.strategy, changed(warps_q=1, block_kv=16), TARGET)
            [program] = build([plan], [render(plan)], Mode.COUNT)
            ones = np.ones((1, 1, 512, 16), np.float16)
            result = program.run({"q": ones, "k": ones, "v": ones}, {"o": np.empty_like(ones)})
            result.require_clean()
            return result.report.counters.flops

        whole, causal, window = flops(""), flops("causal=top_left"), flops("window=16:0")
        assert causal == pytest.approx(whole * 33 / 64)
        assert window <= whole * 3 / 32

    def test_grids_have_one_axis(self) -> None:
        """Batches and heads beyond 65535 are within what a launch takes."""
        for text in ("batch=65536 heads_q=8 seq_q=4 head_dim=64", "batch=1 heads_q=65536 seq_q=10 head_dim=16"):
            problem = Attention.parse(f"attention {text} dtype=fp16")
            plan = lower(problem, self.strategy, None, TARGET)
            assert all(launch.grid[1:] == (1, 1) for launch in plan.launches)
            assert int(plan.launches[0].grid[0]) == problem.typical_sizes[0] * problem.heads_q  # type: ignore[arg-type]

    def test_offsets_beyond_32_bits_have_64(self) -> None:
        for text, wide in (
            ("batch=1600 heads_q=16 seq_q=729 head_dim=72", False),
            ("heads_q=64 seq_q=262144 head_dim=128", True),
        ):
            plan = lower(Attention.parse(f"attention {text} dtype=bf16"), self.strategy, None, TARGET)
            assert (plan.constants["offset_t"] == "long long") == wide

    def test_decoding_splits_keys_and_packs_heads(self) -> None:
        problem = Attention.parse("attention heads_q=96 heads_kv=8 seq_q=1 seq_kv=131072 head_dim=128 dtype=bf16")
        config = self.strategy.default(problem, TARGET)
        assert config.pack_heads
        assert config.splits > 8

    def test_scores_never_are_in_memory(self) -> None:
        problem = Attention.parse("attention heads_q=32 seq_q=8192 head_dim=128 dtype=bf16 causal=bottom_right")
        assert lower(problem, self.strategy, None, TARGET).workspace == ()

    @pytest.mark.parametrize(
        ("fields", "rule"),
        [
            ({"products": "wgmma"}, "mma or fma"),
            ({"row_tiles": 3}, "row_tiles=3"),
            ({"row_tiles": 2, "block_kv": 256}, "registers"),
            ({"block_kv": 24}, "multiple of 16"),
            ({"warps_kv": 4}, "multiple of 16"),
            ({"warps_q": 64}, "threads"),
            ({"buffers": 0}, "at least 1"),
            ({"splits": 1000}, "splits=1000"),
            ({"pack_heads": True}, "no two heads"),
            ({"products": "fma", "q_in_registers": True}, "products=fma"),
        ],
    )
    def test_rules(self, fields: dict[str, object], rule: str) -> None:
        problem = Attention.parse("attention heads_q=2 seq_q=64 head_dim=128 dtype=bf16")
        with pytest.raises(ConfigError, match=rule):
            self.strategy.check(problem, changed(**fields), TARGET)

    def test_tensor_cores_only_where_they_are_as_exact(self) -> None:
        for dtype, target in (("fp32", "h200"), ("tf32", "h200"), ("bf16", "t4")):
            problem = Attention.parse(f"attention heads_q=2 seq_q=64 head_dim=64 dtype={dtype}")
            assert self.strategy.default(problem, Target.preset(target)).products == "fma"
            with pytest.raises(ConfigError, match=dtype):
                self.strategy.check(problem, MMA, Target.preset(target))

    @pytest.mark.parametrize("target", ["t4", "a100", "h200"])
    def test_older_gpus_are_served(self, target: str) -> None:
        """The default fits each; on the first without cp.async and with smaller products of tensor cores."""
        for dtype, width in itertools.product(("fp16", "bf16", "fp32"), (64, 128, 256)):
            problem = Attention.parse(f"attention heads_q=8 seq_q=256 head_dim={width} dtype={dtype}")
            preset = Target.preset(target)
            if self.strategy.why_not(problem, preset) is None:
                lower(problem, self.strategy, None, preset)

    def test_too_wide_is_refused(self) -> None:
        for words, reason in (
            ("head_dim=64 head_dim_v=512", "head_dim_v=512"),
            ("head_dim=1024 head_dim_v=8", "head_dim=1024"),
        ):
            problem = Attention.parse(f"attention heads_q=1 seq_q=8 {words} dtype=fp16")
            assert reason in (self.strategy.why_not(problem, TARGET) or "")
