from __future__ import annotations

import numpy as np
import pytest
from tests.oracles.simulated_shadows import ShadowLaw, simulate_shadows


def test_siblings_are_correlated_as_asked_and_shadows_are_not() -> None:
    law = ShadowLaw(points=4000, shadows=4, forget_sets=2, sibling_correlation=0.7, memorised=0.0, scale_spread=0.0)
    found = simulate_shadows(law, np.random.default_rng(20))
    noise = found.scores
    # Differences of siblings hold only what they do not share, 2(1 − ρ); those of strangers hold everything.
    assert np.var(noise[0] - noise[1]) == pytest.approx(2 * 0.3, rel=0.1)
    assert np.var(noise[0] - noise[2]) == pytest.approx(2.0, rel=0.1)
    assert np.var(noise[2] - found.original_scores[1]) == pytest.approx(2 * 0.3, rel=0.1)
    assert np.var(noise[2] - found.original_scores[0]) == pytest.approx(2.0, rel=0.1)


def test_forgotten_and_retained_points_are_shifted() -> None:
    law = ShadowLaw(points=2000, shadows=8, signal=1.0, memorised=3.0, scale_spread=0.0, tail=0.5)
    found = simulate_shadows(law, np.random.default_rng(21))
    design = found.design
    unseen = found.scores[design.never].mean()
    assert found.scores[design.forgotten].mean() - unseen == pytest.approx(1.0, abs=0.15)
    assert found.scores[design.retained].mean() - unseen == pytest.approx(3.0, abs=0.2)
    original = found.original_scores
    assert original[design.trained].mean() - original[~design.trained].mean() == pytest.approx(3.0, abs=0.2)


def test_a_shadow_effect_moves_all_points_of_a_shadow() -> None:
    law = ShadowLaw(points=2000, shadows=40, shadow_effect=1.0, memorised=0.0, scale_spread=0.0)
    by_model = simulate_shadows(law, np.random.default_rng(22)).scores.mean(1)
    assert by_model.std() == pytest.approx(1.0, abs=0.3)
    assert np.ptp(by_model.reshape(40, 4), axis=1).max() < 0.2
