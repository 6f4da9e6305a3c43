from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from warp_unlearning.attacks.membership.audit import Audit, Observations
from warp_unlearning.errors import InputError
from warp_unlearning.stats.clusters import Spread
from warp_unlearning.studies.audit_shapes import correlation_interval, rank_correlation, risk_correlation


def test_curves_histograms_and_risks_are_those_of_the_scores(carried: Any) -> None:
    arm = carried.results["arms"][0]
    curve = arm["roc"]
    assert (curve["fpr"][0], curve["tpr"][0], curve["fpr"][-1], curve["tpr"][-1]) == (0.0, 0.0, 1.0, 1.0)
    assert np.trapezoid(curve["tpr"], curve["fpr"]) == pytest.approx(arm["all"]["auc"]["value"], abs=0.01)
    widths = np.diff(arm["histogram"]["edges"])
    for part in ("forgotten", "never"):
        assert np.sum(widths * arm["histogram"][part]) == pytest.approx(1.0)
    assert len(arm["risk"]["score"]) == len(arm["risk"]["gradient_norm"]) == arm["all"]["positives"]


def made(norms: np.ndarray, scores: np.ndarray) -> Audit:
    """An audit whose positives are all cells of a table of shadows and points."""
    rows, columns = (index.ravel().astype(np.int32) for index in np.indices(scores.shape))
    observed = Observations(scores.ravel(), columns, rows)
    return Audit(observed, observed, np.arange(len(scores)), scores.shape[1], 1.0, "pooled")


def table(draw: np.random.Generator, shadows: int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Norms and scores that both owe to the point, scores to the shadow as well."""
    common = draw.normal(size=(1, points))
    norms = np.exp(common + 0.3 * draw.normal(size=(shadows, points)))
    shift = 0.4 * draw.normal(size=(shadows, 1))
    return norms, 0.7 * common + draw.normal(size=(shadows, points)) + shift


def test_the_correlation_is_spearmans_and_a_bootstrap_over_points_gives_its_interval() -> None:
    draw = np.random.default_rng(20)
    norms, _ = table(draw, 6, 150)
    scores = np.log(norms) + draw.normal(size=norms.shape) + draw.normal(size=(1, 150))
    norms[0, :5] = np.nan
    found = risk_correlation(made(norms, scores), norms.ravel())
    assert found is not None
    known = np.isfinite(norms)
    assert found["value"] == pytest.approx(spearmanr(norms[known], scores[known])[0])
    boot = []
    for _ in range(300):
        pick = draw.integers(150, size=150)
        x, y = norms[:, pick], scores[:, pick]
        boot.append(spearmanr(x[np.isfinite(x)], y[np.isfinite(x)])[0])
    low, high = np.quantile(boot, [0.025, 0.975])
    assert found["high"] - found["low"] == pytest.approx(high - low, rel=0.25)


def test_the_interval_of_the_correlation_covers_where_shadows_and_points_move_together() -> None:
    draw = np.random.default_rng(21)
    truth = np.mean([spearmanr(*(part.ravel() for part in table(draw, 8, 60)))[0] for _ in range(400)])
    covered = 0
    for _ in range(200):
        norms, scores = table(draw, 8, 60)
        found = risk_correlation(made(norms, scores), norms.ravel())
        assert found is not None
        covered += found["low"] <= truth <= found["high"]
    assert 0.91 <= covered / 200 <= 0.995


def test_there_may_be_nothing_to_correlate() -> None:
    same = np.ones((4, 10))
    assert risk_correlation(made(same, np.random.default_rng(0).normal(size=(4, 10))), same.ravel()) is None


PAIRS = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=30)


@given(PAIRS)
def test_it_is_spearmans_with_ties_and_influences_sum_to_nothing(pairs: list[tuple[int, int]]) -> None:
    x, y = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    found = rank_correlation(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert found is None
        return
    assert found is not None
    assert found.value == pytest.approx(spearmanr(x, y)[0], abs=1e-12)
    assert found.influence.sum() == pytest.approx(0, abs=1e-9)
    turned = rank_correlation(x, -y)
    assert turned is not None
    assert turned.value == pytest.approx(-found.value, abs=1e-12)
    np.testing.assert_allclose(turned.influence, -found.influence, atol=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_an_influence_is_what_leaving_the_observation_out_changes(ties: bool) -> None:
    draw = np.random.default_rng(20)
    x = draw.normal(size=300)
    y = x + draw.normal(size=300)
    if ties:
        x, y = np.round(x), np.round(2 * y)
    found = rank_correlation(x, y)
    assert found is not None
    without = np.array([spearmanr(np.delete(x, i), np.delete(y, i))[0] for i in range(300)])
    np.testing.assert_allclose(found.influence, without.mean() - without, atol=0.02 * np.abs(found.influence).max())


def test_the_interval_stays_inside() -> None:
    found = correlation_interval(0.9, Spread(0.04, 10.0))
    assert -1 < found.low < 0.9 < found.high < 1
    small = correlation_interval(0.3, Spread(1e-8, 1e6))
    assert (small.high - small.low) / 2 == pytest.approx(1.96e-4, rel=1e-3)
    assert correlation_interval(1.0, Spread(0.0, 5.0)).low == -1


def test_what_cannot_be_correlated() -> None:
    assert rank_correlation([1.0, 2.0], [1.0, 2.0]) is None
    with pytest.raises(InputError, match="one length"):
        rank_correlation([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(InputError, match="NaN"):
        rank_correlation([1.0, np.nan, 3.0], [1.0, 2.0, 3.0])
