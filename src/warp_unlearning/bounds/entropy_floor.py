"""The floor that a conditional entropy puts under the mean squared error of every reconstruction.

For x in d dimensions, whatever is observed,

    ξ = (1/d) E‖x − x̂(g)‖² ≥ (1/2πe) exp(2 H(x|g) / d),

by the Gaussian's maximal entropy, the inequality of the arithmetic and geometric means over the eigenvalues of
Cov(x|g), and Jensen's over g. It is met where x given g is Gaussian with one and the same c·I for every g.
"""

from __future__ import annotations

from math import e, exp, isfinite, log, pi
from sys import float_info

from ..errors import InputError


def entropy_floor(entropy: float, *, dimensions: int) -> float:
    """(1/2πe) exp(2H/d), H in nats.

    >>> round(entropy_floor(0.0, dimensions=3) * 2 * pi * e, 9)
    1.0
    """
    return _exponential(2 * _finite(entropy, "entropy") / _positive(dimensions)) / (2 * pi * e)


def floor_ratio(entropy_gain: float, *, dimensions: int) -> float:
    """By how much the floor grows with `entropy_gain` nats more: exp(2 ΔH / d)."""
    return _exponential(2 * _finite(entropy_gain, "entropy gain") / _positive(dimensions))


def _exponential(value: float) -> float:
    if value > log(float_info.max):
        raise InputError(f"exp({value:.4g}) is no number any more; the entropy is too large for so few dimensions")
    return exp(value)


def _positive(dimensions: int) -> int:
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1:
        raise InputError(f"the number of dimensions is {dimensions!r}; give a whole number of at least 1")
    return dimensions


def _finite(value: float, what: str) -> float:
    if not isfinite(value):
        raise InputError(f"the {what} is {value}; give a finite number of nats")
    return value
