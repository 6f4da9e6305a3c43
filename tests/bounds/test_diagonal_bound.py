import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from warp_unlearning.bounds.diagonal_bound import (
    diagonal_information_bound,
    require_energy_preserving,
    sampled_gain,
    sampled_psi,
)
from warp_unlearning.bounds.information_bound import teleported_information_bound
from warp_unlearning.bounds.log_normal import log_normal_gain, log_normal_psi
from warp_unlearning.bounds.mixture import Mixture
from warp_unlearning.errors import InputError

WEIGHTS = np.array([0.3, 0.7])
SNR = np.array([[0.5, 4.0, 0.0], [2.0, 10.0, 1e-4]])


def test_the_bound_is_its_sum() -> None:
    total = sum(w * (-np.log(w) + 0.5 * sum(np.log(1 + a) for a in row)) for w, row in zip(WEIGHTS, SNR, strict=True))
    assert diagonal_information_bound(WEIGHTS, SNR) == pytest.approx(total, rel=1e-12)


def test_the_gain_is_what_the_full_form_loses() -> None:
    """On diagonals: bound without less bound with is ½ Σ π Σ Δψ, draw by draw."""
    generator = np.random.default_rng(0)
    gamma = np.array([0.5, 2.0, 1.0])
    logs = generator.normal(size=(60, 3))
    mixture = Mixture(WEIGHTS, np.zeros((2, 3)), np.stack([np.diag(row * gamma) for row in SNR]))
    full = teleported_information_bound(mixture, noise=np.diag(gamma), ratios=np.exp(0.5 * logs))
    gain = sampled_gain(WEIGHTS, SNR, logs)
    assert diagonal_information_bound(WEIGHTS, SNR) - full.value == pytest.approx(0.5 * gain.value, rel=1e-10)
    assert full.standard_error == pytest.approx(0.5 * gain.standard_error, rel=1e-10)
    expected = WEIGHTS @ (np.log1p(SNR) - sampled_psi(SNR, logs)).sum(1)
    assert gain.value == pytest.approx(expected, rel=1e-10)


def test_sampled_psi_is_the_loop() -> None:
    logs = np.random.default_rng(1).normal(size=(7, 3))
    expected = [[np.mean([np.log(1 + a * np.exp(v)) for v in logs[:, j]]) for j, a in enumerate(row)] for row in SNR]
    assert sampled_psi(SNR, logs) == pytest.approx(np.array(expected), rel=1e-12)


@pytest.mark.parametrize("s", [0.3, 1.5])
def test_draws_of_a_log_normal_agree_with_the_quadrature(s: float) -> None:
    y = s * np.random.default_rng(2).standard_normal((40_000, 3)) - 0.5 * s**2
    gain = sampled_gain(WEIGHTS, SNR, y)
    exact = float(WEIGHTS @ log_normal_gain(SNR, s).values.sum(1))
    assert gain.value == pytest.approx(exact, abs=4 * gain.standard_error)
    assert gain.standard_error < 0.1 * exact
    assert sampled_psi(SNR, y) == pytest.approx(log_normal_psi(SNR, s).values, abs=0.05)


def test_ratios_beyond_the_range_of_floats_are_logarithms() -> None:
    found = sampled_psi([[2.0]], np.full((2, 1), 2000.0))
    assert float(found[0, 0]) == pytest.approx(2000 + np.log(2.0))


laws = arrays(np.float64, st.tuples(st.integers(2, 12), st.integers(1, 4)), elements=st.floats(-15, 15))


@given(laws, st.floats(-12, 12))
def test_jensen_no_law_that_keeps_the_energy_lowers_the_floor(logs: np.ndarray, log_alpha: float) -> None:
    """Any draws taken as the law itself, each coordinate divided by its mean of r²."""
    matched = logs - np.log(np.exp(logs).mean(0))
    require_energy_preserving(matched)
    snr = np.full((1, logs.shape[1]), np.exp(log_alpha))
    gains = np.log1p(snr) - sampled_psi(snr, matched)
    assert (gains >= -1e-9 * (1 + np.log1p(snr))).all()
    spread = np.ptp(logs, axis=0) > 0.1
    assume(abs(log_alpha) < 4)
    assert (gains[0][spread] > 0).all()


@given(laws, st.floats(-12, 12))
def test_no_law_with_a_mean_logarithm_of_zero_raises_the_floor(logs: np.ndarray, log_alpha: float) -> None:
    """Jensen the other way: log(1 + α e^y) is convex in y. So is a weight between two free channels of one law."""
    snr = np.full((1, logs.shape[1]), np.exp(log_alpha))
    gains = np.log1p(snr) - sampled_psi(snr, logs - logs.mean(0))
    assert (gains <= 1e-9 * (1 + np.log1p(snr))).all()


@given(laws, st.floats(-12, 12))
def test_ratios_that_multiply_to_one_gain_nothing_together(logs: np.ndarray, log_alpha: float) -> None:
    """The weights of a path from input to output, of one signal-to-noise ratio, under any law at all."""
    path = np.concatenate([logs, -logs.sum(1, keepdims=True)], axis=1)
    snr = np.full((1, path.shape[1]), np.exp(log_alpha))
    assert sampled_gain([1.0], snr, path).value <= 1e-9 * (1 + float(np.log1p(snr).sum()))


def test_a_law_that_does_not_keep_the_energy_may_lower_the_floor_and_is_refused() -> None:
    logs = np.log(np.array([[1.0, 4.0], [1.0, 1.0]]))
    assert sampled_gain([1.0], [[3.0, 3.0]], logs).value < -0.5
    tight = np.concatenate([np.full((50, 1), 0.5), np.full((50, 1), 0.4)])
    with pytest.raises(InputError, match=r"coordinate 1 has E\[r²\] = 1\.57.* promises no gain; subtract log"):
        require_energy_preserving(np.concatenate([np.zeros((100, 1)), tight], axis=1))


def test_draws_that_keep_the_energy_up_to_chance_are_let_through() -> None:
    y = 0.5 * np.random.default_rng(0).standard_normal((5000, 4)) - 0.125
    require_energy_preserving(y)
    with pytest.raises(InputError, match="coordinate"):
        require_energy_preserving(y + 0.1)


@pytest.mark.parametrize(
    ("weights", "snr", "logs", "message"),
    [
        ([0.5, 0.6], np.ones((2, 1)), np.zeros((2, 1)), "add up to 1"),
        ([1.0], np.ones((2, 1)), np.zeros((2, 1)), "1 weights and 2 rows"),
        ([1.0], -np.ones((1, 1)), np.zeros((2, 1)), "finite numbers of at least 0"),
        ([1.0], np.ones((1, 2)), np.zeros((2, 1)), "at least 2 finite rows of 2"),
        ([1.0], np.ones((1, 2)), np.zeros((1, 2)), "at least 2 finite rows of 2"),
        ([1.0], np.ones((1, 1)), np.full((2, 1), np.nan), "at least 2 finite rows of 1"),
    ],
)
def test_bad_input_is_named(weights: list[float], snr: np.ndarray, logs: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sampled_gain(weights, snr, logs)
