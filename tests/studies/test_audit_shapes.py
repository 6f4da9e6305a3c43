"""What is drawn of an audit, and the correlation of risks with gradient norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from warp_unlearning.attacks.membership.audit import Audit, Observations
from warp_unlearning.studies.audit_shapes import risk_correlation


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
