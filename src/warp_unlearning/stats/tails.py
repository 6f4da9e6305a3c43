"""Quantiles and tails of the distributions that intervals are made of.

`scipy.stats` has them too; every command would wait a second for its import.
"""

from __future__ import annotations

from scipy import special


def normal_beyond(tail: float) -> float:
    """Z with P(Z > z) = `tail` for a standard normal Z."""
    return -float(special.ndtri(tail))


def student_beyond(tail: float, freedom: float) -> float:
    """T with P(T > t) = `tail` for a T of Student's distribution."""
    return -float(special.stdtrit(freedom, tail))


def student_tail(t: float, freedom: float) -> float:
    """P(T > t) for a T of Student's distribution."""
    return float(special.stdtr(freedom, -t))


def beta_below(tail: float, a: float, b: float) -> float:
    """X with P(X < x) = `tail` for an X of the beta distribution."""
    return float(special.betaincinv(a, b, tail))


def beta_beyond(tail: float, a: float, b: float) -> float:
    """X with P(X > x) = `tail` for an X of the beta distribution."""
    return float(special.betainccinv(a, b, tail))
