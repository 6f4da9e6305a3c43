"""Variances of fits that hold a single observation each."""

from __future__ import annotations

import numpy as np
import pytest

from warp_unlearning.attacks.membership.leave_shadow_out import Fits, Variance, variances


def fits(noise: float) -> Fits:
    """Two shadows, three points: one observation of the first kind, five of the second with a variance near 4."""
    shape = (2, 3)
    squares = np.array([[14.0, 16.0, 18.0], [15.0, 16.0, 17.0]])
    return Fits(
        mean=(np.zeros(shape), np.ones(shape)),
        squares=(np.full(shape, noise), squares),
        count=(np.ones(shape), np.full(shape, 5.0)),
        centre=np.full(3, 2.0),
        shadows_left=np.ones((2, 3), dtype=np.int64),
    )


@pytest.mark.parametrize("how", ["pooled", "per_point", "scaled"])
@pytest.mark.parametrize("noise", [1e-13, 1e-9])
def test_one_observation_a_fit_has_the_spread_of_the_other_kind_whatever_its_rounding(
    how: Variance, noise: float
) -> None:
    used = np.ones(3, dtype=bool)
    expected, found = (variances(fits(value), used, how) for value in (0.0, noise))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_the_pooled_variance_of_one_observation_is_that_of_the_other_kind() -> None:
    first, second = variances(fits(1e-13), np.ones(3, dtype=bool), "pooled")
    np.testing.assert_allclose(first, second)
    np.testing.assert_allclose(second[:, 0], [48 / 12, 48 / 12])
