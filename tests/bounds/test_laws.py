import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

from warp_unlearning.bounds.channel_ratios import scale_moment
from warp_unlearning.symmetry.rescaling import Law, draw_scales

LAWS: tuple[tuple[Law, float], ...] = (("uniform", 0.6), ("lognormal", 0.4), ("truncated_normal", 0.5))


@pytest.mark.parametrize(("law", "spread"), LAWS)
@pytest.mark.parametrize("power", [2.0, -2.0, 4.0, -1.0])
@pytest.mark.parametrize("least", [0.0, 0.7, 1.1])
def test_moments_are_those_of_the_factors_that_are_drawn(law: Law, spread: float, power: float, least: float) -> None:
    scales = draw_scales(law, 400_000, spread=spread, generator=torch.Generator().manual_seed(3)).numpy()
    powers = np.where(scales > least, scales, 1.0) ** power
    error = powers.std() / np.sqrt(len(powers))
    assert scale_moment(law, spread, power=power, least=least) == pytest.approx(powers.mean(), abs=5 * error)
    assert error < 0.03 * powers.mean()


def test_closed_forms() -> None:
    assert scale_moment("uniform", 0.6, power=2) == pytest.approx(1 + 0.36 / 3)
    assert scale_moment("uniform", 0.6, power=-2) == pytest.approx(1 / (1 - 0.36))
    assert scale_moment("lognormal", 0.4, power=2) == pytest.approx(1.0, rel=1e-12)
    assert scale_moment("lognormal", 0.4, power=-2) == pytest.approx(np.exp(4 * 0.16))
    for spread in (0.01, 0.5, 3.0):
        exact = truncnorm((0.05 - 1) / spread, np.inf, loc=1, scale=spread).moment(2)
        assert scale_moment("truncated_normal", spread, power=2) == pytest.approx(exact, rel=1e-6)


@given(st.sampled_from(["uniform", "lognormal", "truncated_normal"]), st.floats(0.01, 0.95))
def test_no_law_keeps_the_energy_between_free_channels(law: Law, spread: float) -> None:
    assert scale_moment(law, spread, power=2) * scale_moment(law, spread, power=-2) > 1
