"""Search spaces: the dimensions a strategy can be tuned along, and the configs they span.

A config is a frozen dataclass of ints, bools and strings, one class a strategy; a space lists the values
worth trying for each of its fields. Legality is not decided here: that is `Strategy.check`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

from convgen.errors import ConfigError

Value = int | str | bool

_INTEGER = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Config:
    """Base of every strategy's config. Prints as `field=value,…` and parses back equal.

    A field with a default is one that came later: at its default it is left out, so that kernels of before keep their
    names and texts.
    """

    def __str__(self) -> str:
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        return ",".join(f"{name}={_print(value)}" for name, value in self.as_dict().items() if value != usual[name])

    def as_dict(self) -> dict[str, Value]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], base: Self | None = None) -> Self:
        """Build from untrusted values; fields not given are taken from `base` or the class's defaults.

        Raises ConfigError for an unknown field, a missing one, or a value of the wrong type.
        """
        types = get_type_hints(cls)
        names = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise ConfigError(f"{key}={values[key]}: unknown; {cls.__name__} has {', '.join(names) or 'no fields'}")
        given = {key: _coerce(key, value, types[key]) for key, value in values.items()}
        try:
            return dataclasses.replace(base, **given) if base is not None else cls(**given)
        except TypeError as error:
            missing = [f.name for f in dataclasses.fields(cls) if f.name not in given]
            raise ConfigError(f"config lacks {', '.join(missing)}") from error

    @classmethod
    def parse(cls, text: str, base: Self | None = None) -> Self:
        """Parse `field=value,…`. Raises ConfigError."""
        values: dict[str, str] = {}
        for item in filter(None, text.split(",")):
            key, equals, value = item.partition("=")
            if not equals:
                raise ConfigError(f"config item {item!r}: expected field=value")
            if key.strip() in values:
                raise ConfigError(f"config item {item!r}: expected each field once")
            values[key.strip()] = value.strip()
        return cls.from_mapping(values, base)


def is_number(value: Value) -> bool:
    """True for an integer that is no flag."""
    return isinstance(value, int) and not isinstance(value, bool)


def _print(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _coerce(key: str, value: Any, kind: type) -> Value:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if value in ("yes", "no"):
            return bool(value == "yes")
        raise ConfigError(f"{key}={value}: expected yes or no")
    if kind is int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST:
            return value
        raise ConfigError(f"{key}={value}: expected an integer from {-_LARGEST} to {_LARGEST}")
    if isinstance(value, str):
        return value
    raise ConfigError(f"{key}={value}: expected a word")


@dataclass(frozen=True)
class Space:
    """The values worth trying for each field of a config class, most promising order not implied."""

    config_type: type[Config]
    choices: Mapping[str, tuple[Value, ...]]

    def __post_init__(self) -> None:
        fields = [f.name for f in dataclasses.fields(self.config_type)]
        if list(self.choices) != fields:
            raise TypeError(f"space of {self.config_type.__name__} lists {list(self.choices)}, fields are {fields}")

    def neighbours(self, config: Config, field: str) -> Iterator[Config]:
        """The config with every other value of one field."""
        for value in self.choices[field]:
            if value != getattr(config, field):
                yield dataclasses.replace(config, **{field: value})

    def exchanges(self, config: Config) -> Iterator[Config]:
        """The config with one number a step larger and another a step smaller: much the same product, elsewhere."""
        larger, smaller = list(self._steps(config, 1)), list(self._steps(config, -1))
        for field, value in larger:
            for other, less in smaller:
                if other != field:
                    yield dataclasses.replace(config, **{field: value, other: less})

    def _steps(self, config: Config, by: int) -> Iterator[tuple[str, Value]]:
        for field, values in self.choices.items():
            numbers = sorted(value for value in values if is_number(value))
            if (value := getattr(config, field)) in numbers:
                at = numbers.index(value) + by
                if 0 <= at < len(numbers):
                    yield field, numbers[at]

    def configs(self, check: Callable[[Config], None]) -> Iterator[Config]:
        """Every config of the space that `check` lets pass, in a fixed order."""
        for values in itertools.product(*self.choices.values()):
            config = self.config_type(*values)
            try:
                check(config)
            except ConfigError:
                continue
            yield config
