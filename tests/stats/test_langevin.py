from __future__ import annotations

from math import inf, log, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.stats.langevin import langevin_epsilon, langevin_noise

MNIST, CIFAR = 11982, 10000


def logistic_regression(total: int, *, steps: int = 2, removed: int = 1, decay: float = 1e-6) -> dict[str, Any]:
    """The settings of the published experiments: m = λn, L = 1/4 + λn, η = 1/L, M = 1."""
    m = decay * total
    return {
        "steps": steps,
        "strong_convexity": m,
        "step_size": 1 / (0.25 + m),
        "clip": 1.0,
        "removed": removed,
        "total": total,
        "delta": 1 / total,
    }


@pytest.mark.parametrize(
    ("total", "epsilon", "sigma"),
    [
        *zip(
            [MNIST] * 6,
            (0.05, 0.1, 0.5, 1, 2, 5),
            (0.187146, 0.093685, 0.018915, 0.009567, 0.004889, 0.002073),
            strict=True,
        ),
        *zip(
            [CIFAR] * 6,
            (0.05, 0.1, 0.5, 1, 2, 5),
            (0.243092, 0.121698, 0.024579, 0.012436, 0.006360, 0.002701),
            strict=True,
        ),
    ],
)
def test_published_noise_levels(total: int, epsilon: float, sigma: float) -> None:
    assert langevin_noise(epsilon, **logistic_regression(total)) == pytest.approx(sigma, abs=5.1e-7)


@pytest.mark.parametrize(("removed", "steps"), [(1, 1), (10, 781), (50, 1651), (100, 2001), (500, 2801), (1000, 3141)])
def test_published_numbers_of_steps(removed: int, steps: int) -> None:
    """The published search tries K = 1, 11, 21, ...; ε falls with K, so the answer's neighbour must still fail."""
    assert langevin_epsilon(0.03, **logistic_regression(MNIST, steps=steps, removed=removed)) <= 1
    if steps > 1:
        assert langevin_epsilon(0.03, **logistic_regression(MNIST, steps=steps - 10, removed=removed)) > 1


settings_strategy = st.builds(
    lambda decay, steps, m, clip, removed, more, delta: {
        "steps": steps,
        "strong_convexity": m,
        "step_size": min(decay, steps) / (steps * m),
        "clip": clip,
        "removed": removed,
        "total": removed + more,
        "delta": delta,
    },
    decay=st.floats(1e-4, 50),
    steps=st.integers(1, 5000),
    m=st.floats(1e-4, 10),
    clip=st.floats(0.01, 100),
    removed=st.integers(1, 1000),
    more=st.integers(1, 10**6),
    delta=st.floats(1e-9, 0.5),
)


def by_grid(epsilon: float, s: dict[str, Any]) -> float:
    """σ by trying very many orders α."""
    least = 1 + log(1 / s["delta"]) / epsilon
    alpha = least + (least - 1) * np.logspace(-9, 9, 200_001)
    decay = s["steps"] * s["strong_convexity"] * s["step_size"]
    share = 4 * s["removed"] ** 2 * s["clip"] ** 2 / (s["strong_convexity"] * s["total"] ** 2)
    squared = np.exp(-decay / alpha) * alpha * share / (epsilon - log(1 / s["delta"]) / (alpha - 1))
    return float(np.sqrt(squared[squared > 0].min()))


@settings(deadline=None)
@given(st.floats(0.01, 30), settings_strategy)
def test_noise_is_the_minimum_over_all_orders(epsilon: float, settings: dict[str, Any]) -> None:
    sigma, least = langevin_noise(epsilon, **settings), by_grid(epsilon, settings)
    assert sigma <= least * (1 + 1e-9)
    assert sigma == pytest.approx(least, rel=1e-6)


@settings(deadline=None)
@given(st.floats(0.01, 30), settings_strategy)
def test_epsilon_and_noise_are_inverse(epsilon: float, settings: dict[str, Any]) -> None:
    sigma = langevin_noise(epsilon, **settings)
    assert langevin_epsilon(sigma, **settings) == pytest.approx(epsilon, rel=1e-7)
    assert langevin_noise(langevin_epsilon(2 * sigma, **settings), **settings) == pytest.approx(2 * sigma, rel=1e-7)


@settings(deadline=None)
@given(st.floats(0.01, 30), settings_strategy)
def test_noise_grows_with_removals_and_falls_with_steps_and_epsilon(epsilon: float, settings: dict[str, Any]) -> None:
    sigma = langevin_noise(epsilon, **settings)
    assert langevin_noise(epsilon, **settings | {"steps": 2 * settings["steps"]}) < sigma
    assert langevin_noise(2 * epsilon, **settings) < sigma
    assert langevin_noise(epsilon, **settings | {"clip": 3 * settings["clip"]}) == pytest.approx(3 * sigma, rel=1e-9)


def test_delta_is_one_over_the_total_unless_given() -> None:
    settings = logistic_regression(MNIST)
    without = {k: v for k, v in settings.items() if k != "delta"}
    assert langevin_noise(1.0, **without) == langevin_noise(1.0, **settings)
    assert langevin_epsilon(0.01, **without) == langevin_epsilon(0.01, **settings)
    assert langevin_noise(1.0, **without, delta=1e-9) > langevin_noise(1.0, **settings)


def test_no_noise_is_no_privacy() -> None:
    assert langevin_epsilon(0.0, **logistic_regression(MNIST)) == inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"removed": 0}, "removed=0"),
        ({"removed": MNIST + 1}, f"removed={MNIST + 1}"),
        ({"strong_convexity": 0.0}, "strong_convexity=0.0"),
        ({"step_size": -1.0}, "step_size=-1.0"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": nan}, "delta is nan"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"steps": True}, "steps=True"),
        ({"removed": 1.5}, "removed=1.5"),
        ({"strong_convexity": nan}, "strong_convexity=nan"),
        ({"step_size": nan}, "step_size=nan"),
        ({"step_size": inf}, "step_size=inf"),
        ({"clip": inf}, "clip=inf"),
        ({"clip": 1e200}, "clip is 1e\\+200"),
        ({"step_size": 1e9}, "step_size is 1e\\+09 with strong_convexity=0.011982; .* at most .* = 83.4585"),
    ],
)
def test_settings_outside_the_accounting_are_refused(change: dict[str, Any], message: str) -> None:
    settings = logistic_regression(MNIST) | change
    with pytest.raises(InputError, match=message):
        langevin_noise(1.0, **settings)
    with pytest.raises(InputError, match=message):
        langevin_epsilon(1.0, **settings)


def test_a_step_as_long_as_strong_convexity_allows_is_the_longest() -> None:
    settings = logistic_regression(MNIST)
    for m in (0.011982, 0.1, 3.0, 7e-5):
        assert langevin_noise(1.0, **settings | {"strong_convexity": m, "step_size": 1 / m}) > 0
        with pytest.raises(InputError, match="step_size"):
            langevin_noise(1.0, **settings | {"strong_convexity": m, "step_size": 1.001 / m})


@pytest.mark.parametrize("epsilon", [0.0, -1.0, nan, inf])
def test_epsilon_must_be_positive(epsilon: float) -> None:
    with pytest.raises(InputError, match=f"epsilon is {epsilon}; it must be positive and finite"):
        langevin_noise(epsilon, **logistic_regression(MNIST))


@pytest.mark.parametrize("noise", [-1.0, nan, inf])
def test_noise_must_be_a_number_that_is_not_negative(noise: float) -> None:
    with pytest.raises(InputError, match=f"noise is {noise}; it must be finite and not negative"):
        langevin_epsilon(noise, **logistic_regression(MNIST))


def test_what_floating_point_numbers_cannot_hold_is_refused() -> None:
    for epsilon in (1e300, 1e-300):
        with pytest.raises(InputError, match=r"epsilon is 1e[+-]300; the noise .* more moderate epsilon"):
            langevin_noise(epsilon, **logistic_regression(MNIST))
    with pytest.raises(InputError, match=r"noise is 1e-200; the epsilon .* more moderate noise"):
        langevin_epsilon(1e-200, **logistic_regression(MNIST))
    assert langevin_noise(1.0, **logistic_regression(MNIST) | {"delta": 1e-320}) > 0
