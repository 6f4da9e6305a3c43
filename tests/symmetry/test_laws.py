from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.rescaling import Law, check_law, draw_scales

N = 200_000


def draws(law: Law, spread: float, seed: int = 0) -> torch.Tensor:
    return draw_scales(law, N, spread=spread, generator=torch.Generator().manual_seed(seed))


def test_uniform_factors_fill_their_range() -> None:
    scales = draws("uniform", 0.8)
    assert float(scales.min()) == pytest.approx(0.2, abs=1e-3)
    assert float(scales.max()) == pytest.approx(1.8, abs=1e-3)
    assert float(scales.std()) == pytest.approx(0.8 / math.sqrt(3), rel=0.01)
    assert scales.dtype == torch.float64


@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_lognormal_factors_keep_the_mean_square(spread: float) -> None:
    scales = draws("lognormal", spread)
    assert float(scales.log().std()) == pytest.approx(spread, rel=0.01)
    assert float(scales.log().mean()) == pytest.approx(-(spread**2), abs=0.005)
    assert float(scales.square().mean()) == pytest.approx(1, rel=0.02)
    ratio = scales / draws("lognormal", spread, seed=1)
    assert float(ratio.square().mean()) == pytest.approx(math.exp(4 * spread**2), rel=0.05)


@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_truncated_normal_factors_follow_the_conditional_law(spread: float) -> None:
    scales = draws("truncated_normal", spread)
    plain = 1 + spread * torch.randn(N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    kept = plain[plain > 0.05]
    assert float(scales.min()) >= 0.05
    assert float(scales.mean()) == pytest.approx(float(kept.mean()), abs=0.01)
    for level in (0.1, 0.5, 0.9):
        assert float(scales.quantile(level)) == pytest.approx(float(kept.quantile(level)), abs=0.015)


def test_draws_come_from_the_generator_alone() -> None:
    torch.manual_seed(0)
    first = draws("lognormal", 0.5)
    torch.manual_seed(1)
    assert torch.equal(first, draws("lognormal", 0.5))
    assert not torch.equal(first, draws("lognormal", 0.5, seed=1))


@pytest.mark.parametrize(
    ("law", "spread", "says"),
    [
        ("uniform", 1.0, "zero or negative.*lognormal"),
        ("uniform", 1.5, "1.5"),
        ("lognormal", 3.5, "at most 3"),
        ("uniform", 0.0, "above 0"),
        ("truncated_normal", -0.1, "above 0"),
        ("uniform", math.nan, "nan"),
        ("lognormal", math.inf, "inf"),
        ("uniform", True, "True"),
        ("uniform", "0.5", "'0.5'"),
        ("log-normal", 0.5, "did you mean 'lognormal'"),
    ],
)
def test_what_is_refused(law: Any, spread: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_law(law, spread)
