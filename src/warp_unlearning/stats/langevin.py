"""How much noise Langevin unlearning asks for, by the Rényi accounting of Langevin unlearning (Chien et al., 2024).

For projected noisy gradient descent on an m-strongly convex loss with per-sample gradients clipped to norm M, step size
η, n examples of which S are removed, and K unlearning steps,

    ε(K) = min over α > 1 of  exp(−K m η / α) · 4 α S² M² / (m σ² n²) + log(1/δ) / (α − 1).

The theorem behind it asks for η ≤ 1/L, L being the smoothness of the loss. L is not given here, but it is at least m:
a step size above 1/m is refused, one between 1/L and 1/m is for the caller to avoid.

A deep network is not strongly convex, so for it the result is a *noise level* and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, isfinite, log, sqrt
from numbers import Integral

from ..errors import InputError

# By so much η m may exceed 1 where η was computed as 1/m.
_ROUNDING = 1e-9


def langevin_noise(
    epsilon: float,
    *,
    steps: int,
    strong_convexity: float,
    step_size: float,
    clip: float,
    removed: int,
    total: int,
    delta: float | None = None,
) -> float:
    """The smallest σ for which the accounting gives `epsilon`; `delta` is 1/total unless given.

    Solved for σ² the bound is exp(−Kmη/α)·4αS²M² / (m n² (ε − L/(α−1))), L = log(1/δ), on α > 1 + L/ε. The sign of its
    derivative is that of c + α − L α² / ((α−1)(ε(α−1) − L)), c = Kmη, which only grows, so its one root is the minimum.

    >>> options = dict(steps=2, strong_convexity=0.011982, step_size=1 / 0.261982, clip=1, removed=1, total=11982)
    >>> round(langevin_noise(1.0, **options), 6)
    0.009567
    """
    share, decay, confidence = _accounting(steps, strong_convexity, step_size, clip, removed, total, delta)
    if not (isfinite(epsilon) and epsilon > 0):
        raise InputError(f"epsilon is {epsilon}; it must be positive and finite")
    # Whoever names this method alone need not wait for its import.
    from scipy.optimize import brentq

    def slope(log_excess: float) -> float:
        # α − 1 = (L/ε)(1 + e^t) keeps the search on the side where the denominator is positive.
        beyond = confidence / epsilon * (1 + exp(log_excess))
        order = 1 + beyond
        return decay + order - confidence * order**2 / (beyond * confidence * exp(log_excess))

    def noise() -> float:
        beyond = confidence / epsilon * (1 + exp(float(brentq(slope, -60.0, 60.0, xtol=1e-13))))
        return sqrt(exp(-decay / (1 + beyond)) * (1 + beyond) * share / (epsilon - confidence / beyond))

    return _representable(noise, "epsilon", epsilon, "noise")


def langevin_epsilon(
    noise: float,
    *,
    steps: int,
    strong_convexity: float,
    step_size: float,
    clip: float,
    removed: int,
    total: int,
    delta: float | None = None,
) -> float:
    """The ε of the accounting for noise level σ = `noise`: the inverse of `langevin_noise`.

    >>> options = dict(steps=2, strong_convexity=0.01, step_size=3.0, clip=1, removed=1, total=1000)
    >>> round(langevin_epsilon(langevin_noise(2.0, **options), **options), 6)
    2.0
    """
    share, decay, confidence = _accounting(steps, strong_convexity, step_size, clip, removed, total, delta)
    if not (isfinite(noise) and noise >= 0):
        raise InputError(f"noise is {noise}; it must be finite and not negative")
    if noise == 0:
        return inf
    from scipy.optimize import minimize_scalar

    def bound(log_beyond: float) -> float:
        order = 1 + exp(log_beyond)
        return exp(-decay / order) * order * share / noise**2 + confidence / exp(log_beyond)

    def least() -> float:
        found = minimize_scalar(bound, bounds=(-40.0, 40.0), method="bounded", options={"xatol": 1e-12})
        return float(found.fun)

    return _representable(least, "noise", noise, "epsilon")


def _accounting(
    steps: int, strong_convexity: float, step_size: float, clip: float, removed: int, total: int, delta: float | None
) -> tuple[float, float, float]:
    """4S²M²/(m n²), K m η and log(1/δ)."""
    counts: tuple[object, ...] = steps, removed, total
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in counts)
    if not whole or steps < 1 or not 1 <= removed <= total:
        raise InputError(
            f"steps={steps}, removed={removed}, total={total}; whole numbers, at least one step and 1 to {total} "
            "removals are needed"
        )
    if not all(isfinite(value) and value > 0 for value in (strong_convexity, step_size, clip)):
        raise InputError(
            f"strong_convexity={strong_convexity}, step_size={step_size}, clip={clip}; each must be positive and finite"
        )
    if step_size * strong_convexity > 1 + _ROUNDING:
        raise InputError(
            f"step_size is {step_size:g} with strong_convexity={strong_convexity:g}; the accounting holds for steps of "
            f"at most 1/smoothness, and no loss is less smooth than its strong convexity: give at most "
            f"1/strong_convexity = {1 / strong_convexity:g}"
        )
    failure = 1 / total if delta is None else delta
    share = _representable(lambda: 4 * (removed / total) ** 2 * clip**2 / strong_convexity, "clip", clip, "bound")
    if not 0 < failure < 1:
        raise InputError(f"delta is {failure}; it must lie between 0 and 1 (the default is 1/total)")
    return share, steps * strong_convexity * step_size, -log(failure)


def _representable(compute: Callable[[], float], name: str, value: float, wanted: str) -> float:
    """The outcome where floating-point numbers can hold it and what leads to it."""
    try:
        found = compute()
    except (ArithmeticError, ValueError):
        found = 0.0
    if not (isfinite(found) and found > 0):
        raise InputError(
            f"{name} is {value:g}; the {wanted} of the accounting with these settings is outside of what "
            f"floating-point numbers hold: give a more moderate {name}"
        )
    return found
