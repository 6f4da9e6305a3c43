import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from warp_unlearning.errors import InputError
from warp_unlearning.stats.calibration import conformal_p

# Few values, so that ties are frequent.
SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(scores=SCORES, calibration=SCORES)
def test_conservative_p_values_count_the_calibration_scores(scores: list[float], calibration: list[float]) -> None:
    n = len(calibration)
    upper = [(1 + sum(c >= s for c in calibration)) / (n + 1) for s in scores]
    lower = [(1 + sum(c <= s for c in calibration)) / (n + 1) for s in scores]
    both = [min(1.0, 2 * min(pair)) for pair in zip(upper, lower, strict=True)]
    np.testing.assert_allclose(conformal_p(scores, calibration), upper, rtol=1e-14)
    np.testing.assert_allclose(conformal_p(scores, calibration, side="lower"), lower, rtol=1e-14)
    np.testing.assert_allclose(conformal_p(scores, calibration, side="two-sided"), both, rtol=1e-14)


@given(scores=SCORES, calibration=SCORES, seed=st.integers(0, 99))
def test_random_p_values_lie_within_the_tie(scores: list[float], calibration: list[float], seed: int) -> None:
    found = conformal_p(scores, calibration, generator=np.random.default_rng(seed))
    n = len(calibration)
    for score, p in zip(scores, found, strict=True):
        assert sum(c > score for c in calibration) / (n + 1) < p <= (1 + sum(c >= score for c in calibration)) / (n + 1)


@pytest.mark.parametrize("side", ["upper", "lower", "two-sided"])
def test_random_p_values_are_uniform_whatever_the_ties(side: str) -> None:
    rng = np.random.default_rng(20)
    replicates = rng.integers(0, 4, (4000, 10)).astype(float)
    p = [conformal_p(row[:1], row[1:], side=side, generator=rng)[0] for row in replicates]  # type: ignore[arg-type]
    assert kstest(p, "uniform").pvalue > 1e-3


def test_conservative_p_values_are_uniform_on_their_grid_without_ties() -> None:
    replicates = np.random.default_rng(21).normal(size=(4000, 10))
    p = np.array([conformal_p(row[:1], row[1:])[0] for row in replicates])
    counts = np.bincount(np.rint(p * 10).astype(int), minlength=11)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-3


def test_conservative_p_values_are_never_too_small_with_ties() -> None:
    replicates = np.random.default_rng(22).integers(0, 3, (4000, 10)).astype(float)
    p = np.array([conformal_p(row[:1], row[1:])[0] for row in replicates])
    for level in (0.1, 0.2, 0.3, 0.5):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(p))


def test_a_score_equal_to_all_of_the_null_is_no_evidence() -> None:
    assert conformal_p([0.0], np.zeros(5)).tolist() == [1.0]
    assert conformal_p([0.0], np.zeros(5), side="two-sided").tolist() == [1.0]


@pytest.mark.parametrize(
    ("scores", "calibration", "said"),
    [
        ([np.nan], [0.0], "score 0 of 1 is nan"),
        ([0.0], [1.0, np.inf], "calibration score 1 of 2 is inf"),
        ([0.0], [], "no calibration score"),
        ([[0.0]], [0.0], "shape"),
    ],
)
def test_bad_input(scores: list[float], calibration: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        conformal_p(scores, calibration)


def test_an_unknown_side_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'upper'"):
        conformal_p([0.0], [0.0], side="uper")  # type: ignore[arg-type]
