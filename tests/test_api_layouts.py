"""The layout of a call, read from strides."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.api.arguments import Described, described_shape
from convgen.api.layouts import layout_of
from convgen.errors import UsageError
from convgen.problem import Layout

FIRST, LAST = Layout.CHANNELS_FIRST, Layout.CHANNELS_LAST


def _first(*shape: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and element strides of a NumPy array in logical order."""
    array = np.empty(shape, np.uint8)
    return array.shape, array.strides


def _last(*shape: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same of one that lies as N, spatial…, C."""
    array = np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.uint8), -1, 1)
    return array.shape, array.strides


W_FIRST, W_LAST = _first(8, 4, 3, 3), _last(8, 4, 3, 3)


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 9, 7), (2, 4, 5, 9, 7)])
def test_a_dense_input_has_one_layout(shape: tuple[int, ...]) -> None:
    weight = _first(8, 4, *(3,) * (len(shape) - 2)), _last(8, 4, *(3,) * (len(shape) - 2))
    for w in weight:
        assert layout_of(_first(*shape), w, None) is FIRST
        assert layout_of(_last(*shape), w, None) is LAST


def test_a_layout_that_contradicts_the_strides_is_refused() -> None:
    for given in ("nchw", "NCDHW", FIRST):  # is told as it was given
        with pytest.raises(UsageError, match=f"layout={given}: input has the strides of nhwc"):
            layout_of(_last(2, 4, 9, 7), W_LAST, given)
    assert layout_of(_last(2, 4, 9, 7), W_LAST, LAST) is LAST


@pytest.mark.parametrize("shape", [(2, 1, 9, 7), (2, 4, 1, 1), (0, 4, 9, 7)])
def test_a_given_layout_settles_what_strides_leave_open(shape: tuple[int, ...]) -> None:
    for input in (_first(*shape), _last(*shape)):
        for given in (FIRST, LAST):
            assert layout_of(input, W_FIRST, given) is given


@pytest.mark.parametrize("shape", [(2, 1, 9, 7), (2, 4, 1, 1)])
def test_strides_as_pytorch_sets_them_settle_it_otherwise(shape: tuple[int, ...]) -> None:
    # torch.channels_last has these strides even where an extent is 1.
    c, h, w = shape[1:]
    assert layout_of((shape, (h * w * c, 1, w * c, c)), W_FIRST, None) is LAST
    assert layout_of((shape, (c * h * w, h * w, w, 1)), W_LAST, None) is FIRST


def test_else_the_weight_does() -> None:
    open_input = (2, 4, 1, 1), (4, 1, 77, 99)
    assert layout_of(open_input, W_FIRST, None) is FIRST
    assert layout_of(open_input, W_LAST, None) is LAST
    assert layout_of(open_input, ((8, 4, 1, 1), (4, 1, 5, 5)), None) is FIRST


def test_a_strided_view_has_the_layout_of_its_neighbours() -> None:
    first, last = np.empty((2, 8, 9, 7), np.uint8)[:, ::2], np.empty((2, 9, 7, 8), np.uint8).transpose(0, 3, 1, 2)
    assert layout_of((first.shape, first.strides), W_LAST, None) is FIRST
    cut = last[:, :, :, 1:]
    assert layout_of((cut.shape, cut.strides), W_FIRST, None) is LAST
    assert layout_of((cut.shape, cut.strides), W_FIRST, FIRST) is FIRST


def test_a_shape_alone_is_laid_out_as_the_weight() -> None:
    for weight, order in ((W_FIRST, _first), (W_LAST, _last)):
        described = described_shape((2, 4, 9, 7), Described(*weight, "float32"), None)
        assert (described.shape, described.strides) == order(2, 4, 9, 7)
    described = described_shape((4, 9, 7), Described(*W_FIRST, "float32"), "nhwc")
    assert (described.shape, described.strides) == ((4, 9, 7), (1, 28, 4))
