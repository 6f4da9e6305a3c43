import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

from warp_unlearning.bounds.scale_energy import require_energy_preserving_law, scale_energy, scale_moment
from warp_unlearning.errors import InputError
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
    uniform, log_normal = scale_energy("uniform", 0.6), scale_energy("lognormal", 0.4)
    assert uniform.out == pytest.approx(1 + 0.36 / 3)
    assert uniform.into == pytest.approx(1 / (1 - 0.36))
    assert log_normal.out == pytest.approx(1.0, rel=1e-12)
    assert log_normal.into == pytest.approx(np.exp(4 * 0.16))
    assert log_normal.between == pytest.approx(np.exp(4 * 0.16))
    for spread in (0.01, 0.5, 3.0):
        exact = truncnorm((0.05 - 1) / spread, np.inf, loc=1, scale=spread).moment(2)
        assert scale_energy("truncated_normal", spread).out == pytest.approx(exact, rel=1e-6)


@given(st.sampled_from(["uniform", "lognormal", "truncated_normal"]), st.floats(0.01, 0.95))
def test_no_law_keeps_the_energy_between_free_channels(law: Law, spread: float) -> None:
    assert scale_energy(law, spread).between > 1


def test_the_log_normal_alone_keeps_energy_and_only_on_the_way_out() -> None:
    require_energy_preserving_law("lognormal", 0.5, which="out")
    with pytest.raises(InputError, match=r"E\[r²\] = 2\.71828 for r = 1/τ .*use law='lognormal' on what leads out"):
        require_energy_preserving_law("lognormal", 0.5, which="in")
    with pytest.raises(InputError, match=r"'lognormal' with spread 0\.5 has E\[r²\] = 2\.71828 for r = τ_in/τ_out"):
        require_energy_preserving_law("lognormal", 0.5, which="between")
    for law, spread in (("uniform", 0.6), ("truncated_normal", 0.5)):
        for which in ("out", "in", "between"):
            with pytest.raises(InputError, match="not 1: the bound promises no gain"):
                require_energy_preserving_law(law, spread, which=which)  # type: ignore[arg-type]


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="spread is 0"):
        scale_energy("uniform", 0)
    with pytest.raises(InputError, match=r"spread is -0\.1"):
        scale_energy("lognormal", -0.1)
    with pytest.raises(InputError, match="law is 'normal'"):
        scale_energy("normal", 0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="which is 'between_'; did you mean 'between'"):
        require_energy_preserving_law("uniform", 0.5, which="between_")  # type: ignore[arg-type]
