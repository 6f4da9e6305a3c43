from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from warp_unlearning.errors import InputError
from warp_unlearning.stats.clusters import Spread
from warp_unlearning.stats.rank_correlation import correlation_interval, rank_correlation

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
