"""How far from right a transformed convolution may be, and what that admits.

Let x and w be a tile and a filter, and a transform round each of its operations by at most u. The error of a result is
at most u * (sum of the operations' bounds) * |x|_2 * |w|_2 over the whole tile (Brent, Percival and Zimmermann, "Error
bounds on complex floating-point multiplication", 2007, theorem 5; Higham, "Accuracy and Stability of Numerical
Algorithms", chapter 24). With |x|_2 up to sqrt(N) max |x| for a tile of N pixels, that is sqrt(N) times what data come
near, since every one of the N frequencies' errors would have to arrive in phase at one result.

What is stated instead lets them arrive as they do: rounding errors as independent random numbers of mean zero (Higham
and Mary, "A new approach to probabilistic rounding error analysis", 2019). Then the squares of their bounds add up, the
error spreads evenly over the tile's N results, which takes back the sqrt(N), and

    |error| <= LAMBDA * u * sqrt(sum of squares of the operations' bounds) * max |x| * |w|_1

fails with a probability of at most 2 exp(-LAMBDA^2 / 2) a result: 3e-14. Where data are regular instead (a constant
tile has one frequency), errors do arrive in phase, but from few frequencies: then the plain sum of the bounds holds,
again without sqrt(N). The larger of the two is stated.
"""

from __future__ import annotations

import math

from convgen.gather import Gather
from convgen.plan import Numerics, Taps
from convgen.problem import Accuracy, Conv, DType
from convgen.strategies.fft_tiling import Tiling

LAMBDA = 8.0
"""Standard deviations that an error may reach."""


def numerics(t: Tiling) -> Numerics:
    """The arithmetic of a config's kernels."""
    rounding = t.rounding
    steps = math.ceil(max(rounding.total, LAMBDA * math.sqrt(rounding.squares)))
    return Numerics(steps=steps, reach=t.reach, taps=Taps.ALL, exact_on_integers=False)


def worst_case(t: Tiling) -> float:
    """The bound that holds whatever the errors, in units of u * max |x| * |w|_1 and to first order."""
    real_points = 2 * t.points
    return t.rounding.total * math.sqrt(real_points)


def direct_steps(g: Gather) -> int:
    """Roundings that a product meets in the direct kernel: the terms of the longest sum."""
    return g.q_size * math.prod(-(-a.taps // (a.divisor // math.gcd(a.divisor, abs(a.spread)))) for a in g.axes)


def beyond_strict(problem: Conv, g: Gather, stated: Numerics) -> str | None:
    """Why an arithmetic is not admitted by the problem's accuracy, with the figures; None if it is."""
    direct = direct_steps(g)
    rate = stated.growth * (2 * stated.eps_in + (stated.steps or 0) * stated.eps_acc)
    if problem.accuracy is Accuracy.FAST or rate <= direct * DType.FP32.eps:
        return None
    return (
        f"an error of up to {stated.steps} roundings of 2^-24, where the direct kernel's {direct} terms make {direct}; "
        "accuracy=fast admits it"
    )
