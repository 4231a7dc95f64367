"""Batch normalisation as a problem: its forms, its tensors, and what it refuses."""

from __future__ import annotations

import json

import pytest
from pooling_generators import random_batch_norms

from convgen.errors import ProblemError
from convgen.problem import BatchNorm, DType, Sizes, parse_problem, problem_from_json

TRAINING = "batch_norm n=32 c=64 in=56x56 mode=training"


def test_batch_normalisations_read_back_equal() -> None:
    for norm in random_batch_norms(seed=0, count=200):
        assert parse_problem(str(norm)) == norm
        assert str(BatchNorm.parse(str(norm))) == str(norm)
        assert problem_from_json(json.loads(json.dumps(norm.to_json()))) == norm


def test_canonical_text() -> None:
    whole = TRAINING + " eps=0.001 momentum=0.3 residual=yes activation=leaky_relu slope=0.2 dtype=bf16 layout=nhwc"
    assert str(BatchNorm.parse(whole)) == whole
    assert str(BatchNorm.of(c=7)) == "batch_norm n=1 c=7"
    assert str(BatchNorm.of(c=7, spatial=5, layout="nlc")) == "batch_norm n=1 c=7 in=5 layout=nlc"


def test_tensors() -> None:
    norm = BatchNorm.parse(TRAINING + " residual=yes dtype=fp16")
    assert [t.name for t in norm.inputs] == ["x", "scale", "bias", "mean", "var", "residual"]
    assert [t.name for t in norm.outputs] == ["y", "save_mean", "save_inv_std", "running_mean", "running_var"]
    assert norm.tensor("y").shape == norm.tensor("residual").shape == (32, 64, 56, 56)
    assert {t.dtype for t in norm.inputs if t.shape == (64,)} == {DType.FP32}
    size = 32 * 64 * 56 * 56
    assert norm.bytes == 3 * 2 * size + 8 * 4 * 64
    assert norm.flops == 6 * size
    plain = BatchNorm.parse(TRAINING + " affine=no running=no")
    assert [t.name for t in plain.inputs] == ["x"]
    assert [t.name for t in plain.outputs] == ["y", "save_mean", "save_inv_std"]
    inference = BatchNorm.parse(TRAINING.replace("training", "inference"))
    assert [t.name for t in inference.outputs] == ["y"]


def test_a_runtime_batch() -> None:
    norm = BatchNorm.parse(TRAINING.replace("n=32", "n=*<=64~8"))
    assert norm.sizes == Sizes.of(n=8)
    assert norm.with_sizes(Sizes.of(n=5)).count == 5 * 56 * 56
    with pytest.raises(ProblemError, match="two values"):
        BatchNorm.parse("batch_norm n=* c=3 mode=training").at(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_norm n=1 c=3 mode=training", "two values"),
        ("batch_norm n=3 c=3 eps=0", "above 0"),
        ("batch_norm n=3 c=3 momentum=1.5", "from 0 to 1"),
        ("batch_norm n=3 c=3 mode=eval", "training, inference"),
        ("batch_norm n=3 c=3 dtype=int8", "fp32, fp16, bf16"),
        ("batch_norm n=3 c=3 slope=0.5", "leaky_relu"),
        ("batch_norm n=3 c=3 in=2x2x2x2", "at most 3"),
        ("batch_norm n=3", "no default"),
        ("batch_norm n=3 c=3 running=no", "running statistics"),
        ("batch_norm n=3 c=3 filter=2", "one of the keys"),
        ("batch_norm n=3 c=3 direction=dgrad", "fprop"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        parse_problem(text)
