import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.attacks.membership.coordinate_spread import (
    CoordinateSpread,
    _by_running_means,
    _by_two_means,
    most_variant,
)
from warp_unlearning.errors import InputError


def spread_of(rows: torch.Tensor, batch: int) -> CoordinateSpread:
    spread = CoordinateSpread()
    for part in rows.split(batch):
        spread.add(part)
    return spread


@given(seed=st.integers(0, 999), count=st.integers(2, 30), batch=st.integers(1, 31), offset=st.sampled_from([0, 1e6]))
def test_means_and_variances_are_those_of_all_rows(seed: int, count: int, batch: int, offset: float) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 4)) * [1e-3, 1, 10, 0] + offset
    spread = spread_of(torch.from_numpy(rows), batch)
    assert spread.count == count
    np.testing.assert_allclose(spread.mean, rows.mean(0), rtol=1e-13, atol=1e-13)
    # A mean of 1e6 is itself rounded, by 1e-7 of the smallest deviation.
    np.testing.assert_allclose(spread.variance[:3], rows.var(0, ddof=1)[:3], rtol=1e-6 if offset else 1e-12)
    assert float(spread.variance[3]) == 0


def test_a_variance_far_below_the_squared_mean_survives_in_float32() -> None:
    rows = (1000 + 1e-3 * np.random.default_rng(20).normal(size=(1000, 3))).astype(np.float32)
    truth = rows.astype(np.float64).var(0, ddof=1)
    np.testing.assert_allclose(spread_of(torch.from_numpy(rows), 64).variance, truth, rtol=1e-6)


def test_batches_that_differ_in_mean() -> None:
    rows = torch.arange(12.0).reshape(6, 2) ** 2
    np.testing.assert_allclose(spread_of(rows, 2).variance, rows.double().var(0), rtol=1e-14)


def test_rows_are_left_as_they_were() -> None:
    rows = torch.arange(6.0).reshape(3, 2)
    spread_of(rows, 3)
    assert torch.equal(rows, torch.arange(6.0).reshape(3, 2))


@given(
    variance=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), min_size=1, max_size=30),
    keep=st.floats(0.01, 1.0),
)
def test_the_most_variant_are_those_of_a_sorted_list(variance: list[float], keep: float) -> None:
    wanted = max(1, round(keep * len(variance)))
    ranked = sorted(range(len(variance)), key=lambda i: (-variance[i], i))[:wanted]
    assert most_variant(torch.tensor(variance), keep).tolist() == sorted(i for i in ranked if variance[i] > 0)


def test_a_tenth_of_thirty_is_three() -> None:
    # 0.1 * 30 is 3.0000000000000004, so rounding up would choose four.
    assert len(most_variant(torch.arange(1.0, 31.0), 0.1)) == 3


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_that_is_none(keep: float) -> None:
    with pytest.raises(InputError, match="keep is"):
        most_variant(torch.ones(3), keep)


def test_too_few_rows() -> None:
    with pytest.raises(InputError, match="no rows"):
        _ = CoordinateSpread().mean
    spread = spread_of(torch.ones(1, 2), 1)
    with pytest.raises(InputError, match="1 rows have no variance"):
        _ = spread.variance


@pytest.mark.parametrize("reduced", [_by_two_means, _by_running_means])
def test_both_reductions_are_those_of_float64(reduced) -> None:
    rng = np.random.default_rng(20)
    rows = (rng.normal(size=(200, 4)) * [1e-3, 1, 30, 0] + [1, 0, 5, 2]).astype(np.float32)
    exact = rows.astype(np.float64)
    mean, deviation = reduced(torch.from_numpy(rows.copy()))
    assert mean.dtype == deviation.dtype == torch.float64
    np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deviation[:3], 200 * exact.var(0)[:3], rtol=1e-4)
    assert float(deviation[3]) == 0
