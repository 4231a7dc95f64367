"""Configs from text and mappings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from convgen.errors import ConfigError
from convgen.space import Config, Space


@dataclass(frozen=True)
class Tiling(Config):
    tile: int = 4
    vector: int = 1


def test_a_config_reads_back_equal() -> None:
    for config in (Tiling(), Tiling(2**31 - 1, 1 - 2**31)):
        assert Tiling.parse(str(config)) == config
    assert Tiling.parse("vector=2", Tiling(tile=8)) == Tiling(8, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vector=1,vector=2", "'vector=2': expected each field once"),
        ("vector=1, vector=1", "each field once"),
        ("vector=2147483648", "vector=2147483648: expected an integer from -2147483647 to 2147483647"),
        ("vector=" + "9" * 5000, "from -2147483647 to 2147483647"),
        ("vector=--1", "an integer"),
        ("vector=\u0663", "an integer"),
        ("vector=", "an integer"),
        ("vector", "field=value"),
        ("width=1", "tile, vector"),
    ],
)
def test_a_config_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Tiling.parse(text)
    assert message in str(caught.value)


def test_integers_of_a_mapping_have_the_same_range() -> None:
    with pytest.raises(ConfigError, match="2147483647"):
        Tiling.from_mapping({"tile": 2**31})
    with pytest.raises(ConfigError, match="an integer"):
        Tiling.from_mapping({"tile": True})


SPACE = Space(Tiling, {"tile": (1, 2, 4, 8), "vector": (4, 1, 2)})


def test_neighbours_have_another_value_of_one_field() -> None:
    assert list(SPACE.neighbours(Tiling(2, 1), "tile")) == [Tiling(1, 1), Tiling(4, 1), Tiling(8, 1)]
    assert list(SPACE.neighbours(Tiling(2, 8), "vector")) == [Tiling(2, 4), Tiling(2, 1), Tiling(2, 2)]


def test_exchanges_step_one_number_up_and_another_down() -> None:
    assert set(SPACE.exchanges(Tiling(2, 2))) == {Tiling(4, 1), Tiling(1, 4)}
    assert list(SPACE.exchanges(Tiling(8, 2))) == [Tiling(4, 4)]
    assert list(SPACE.exchanges(Tiling(3, 2))) == []
