"""The strategies that compute convolutions."""

from __future__ import annotations

from convgen.problem import Conv
from convgen.strategies import strategies_of

CONV_STRATEGIES = strategies_of(Conv.parse("conv1d c=1 k=1 in=1 filter=1"))
