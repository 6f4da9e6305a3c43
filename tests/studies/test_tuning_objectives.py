"""The four objectives against values worked out by hand, and the attack against one written out."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedShuffleSplit

from warp_unlearning.errors import InputError
from warp_unlearning.studies.tuning_objectives import (
    indiscernibility,
    mean_objectives,
    membership_accuracy,
    norm,
    objectives,
)


def test_objectives_by_hand() -> None:
    unlearned = {"retain": 0.96, "forget": 0.5, "validation": 0.83, "held_out": 0.0}
    retrained = {"retain": 0.99, "forget": 0.8, "validation": 0.80}
    found = objectives(unlearned, retrained, 0.35)
    # ⅓ of 0.03, 0.3 and 0.03; the attack is wrong more often than chance by 0.15 of 0.5.
    assert found == pytest.approx((0.01, 0.1, 0.01, 0.3))
    assert norm(found) == pytest.approx(sqrt(0.01**2 + 0.1**2 + 0.01**2 + 0.3**2))


@given(st.floats(0, 1))
def test_indiscernibility_is_1_at_a_half_and_falls_alike_to_both_sides(mia: float) -> None:
    assert indiscernibility(mia) == pytest.approx(indiscernibility(1 - mia))
    assert 0 <= indiscernibility(mia) <= 1
    assert indiscernibility(mia) == pytest.approx(1 - abs(2 * mia - 1))


def test_a_mean_is_that_of_each_objective() -> None:
    assert mean_objectives([(0.0, 0.2, 0.4, 0.6), (0.2, 0.2, 0.0, 0.0)]) == pytest.approx((0.1, 0.2, 0.2, 0.3))


def fitted(x: NDArray[np.float64], y: NDArray[np.int64]) -> tuple[float, float]:
    """Weight and intercept of the minimum of ½w² + Σ log(1 + exp(−s(wx + b))), s = ±1, by Newton's method."""
    w = b = 0.0
    for _ in range(100):
        p = 1 / (1 + np.exp(-(w * x + b)))
        gradient = np.array([w + np.sum((p - y) * x), np.sum(p - y)])
        h = p * (1 - p)
        hessian = np.array([[1 + np.sum(h * x * x), np.sum(h * x)], [np.sum(h * x), np.sum(h)]])
        step = np.linalg.solve(hessian, gradient)
        w, b = w - step[0], b - step[1]
    return w, b


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_the_attack_is_a_logistic_regression_on_standardised_losses(scale: float) -> None:
    generator = np.random.default_rng(3)
    forgotten = scale * generator.exponential(1.0, size=40)
    unseen = scale * generator.exponential(2.0, size=40)
    x, y = np.concatenate([forgotten, unseen]), np.repeat([1, 0], 40)
    right = []
    for train, test in StratifiedShuffleSplit(n_splits=10, random_state=17).split(x[:, None], y):
        mean, deviation = x[train].mean(), x[train].std()
        w, b = fitted((x[train] - mean) / deviation, y[train])
        right.append(np.mean((w * (x[test] - mean) / deviation + b > 0) == y[test]))
    found = membership_accuracy(forgotten, unseen, seed=17)
    assert found == pytest.approx(np.mean(right))
    assert 0.5 < found < 0.9


def test_the_attack_is_always_right_on_what_is_apart_and_guesses_on_what_is_equal() -> None:
    zeros = np.zeros(30)
    assert membership_accuracy(zeros, zeros + 1, seed=0) == 1.0
    assert membership_accuracy(zeros, zeros, seed=0) == 0.5


def test_unequal_sets_are_brought_to_the_size_of_the_smaller() -> None:
    generator = np.random.default_rng(0)
    few, many = generator.normal(size=20), generator.normal(size=2000)
    # Left unequal, saying "unseen" would be right in 99 of 100 cases.
    found = [membership_accuracy(few, many, seed=seed) for seed in range(8)]
    assert abs(np.mean(found) - 0.5) < 0.1
    chosen = np.sort(many)[:20]
    assert membership_accuracy(many[:20], chosen, seed=4) == membership_accuracy(many[:20], chosen, seed=4)


@pytest.mark.parametrize(("forgotten", "unseen"), [(9, 50), (50, 9)])
def test_too_few_examples_are_refused(forgotten: int, unseen: int) -> None:
    with pytest.raises(InputError, match=f"there are {forgotten} forgotten and {unseen} unseen examples"):
        membership_accuracy(np.zeros(forgotten), np.zeros(unseen), seed=0)
