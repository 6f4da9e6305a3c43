import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.attacks.membership.background_fits import fit_backgrounds, parts_of
from warp_unlearning.attacks.membership.gradient_rows import HeldRows
from warp_unlearning.errors import InputError


@given(
    seed=st.integers(0, 999),
    m=st.integers(4, 25),
    repetitions=st.integers(1, 2),
    batch=st.integers(1, 26),
    keep=st.sampled_from([0.05, 0.3, 1.0]),
)
def test_two_passes_equal_brute_force(seed: int, m: int, repetitions: int, batch: int, keep: float) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(m, 20)) * rng.exponential(size=20) + 3 * rng.normal(size=20)
    rows[:, rng.permutation(20)[:4]] = 0.7  # dead
    candidates = rng.normal(size=(3, 20))
    parts = parts_of(m, repetitions=repetitions, generator=torch.Generator().manual_seed(seed))
    fits = fit_backgrounds(
        HeldRows(torch.from_numpy(rows)), parts, keep=keep, ridge=0.01, relative=False, batch_size=batch
    )
    for part, fit in zip(parts, fits, strict=True):
        background = rows[part.numpy()]
        variance = background.var(0, ddof=1)
        alive = [i for i in range(20) if np.ptp(background[:, i]) > 0]
        chosen = sorted(sorted(alive, key=lambda i: -variance[i])[: max(1, round(keep * 20))])
        assert fit.columns.tolist() == chosen
        assert (fit.fit.size, fit.fit.coordinates) == (len(part), len(chosen))
        v = (candidates - background.mean(0))[:, chosen]
        covariance = np.atleast_2d(np.cov(background[:, chosen], rowvar=False)) + 0.01 * np.eye(len(chosen))
        expected = (v * np.linalg.solve(covariance, v.T).T).sum(1)
        np.testing.assert_allclose(fit.statistic(torch.from_numpy(candidates)), expected, rtol=1e-8, atol=1e-10)


def test_rows_outside_all_parts_do_not_count() -> None:
    rows = torch.randn(10, 6, generator=torch.Generator().manual_seed(20), dtype=torch.float64)
    some = torch.tensor([7, 1, 4, 5])
    (one,) = fit_backgrounds(HeldRows(rows), [some], keep=1.0, ridge=1.0, relative=False, batch_size=3)
    (other,) = fit_backgrounds(
        HeldRows(rows[some]), [torch.arange(4)], keep=1.0, ridge=1.0, relative=False, batch_size=4
    )
    np.testing.assert_allclose(one.statistic(rows), other.statistic(rows), rtol=1e-12)


@given(count=st.integers(2, 60), repetitions=st.integers(1, 6), seed=st.integers(0, 99))
def test_parts_are_disjoint_and_take_everything(count: int, repetitions: int, seed: int) -> None:
    if count < 2 * repetitions:
        with pytest.raises(InputError, match="fewer repetitions"):
            parts_of(count, repetitions=repetitions, generator=torch.Generator())
        return
    parts = parts_of(count, repetitions=repetitions, generator=torch.Generator().manual_seed(seed))
    assert torch.cat(parts).sort().values.tolist() == list(range(count))
    assert len(parts) == repetitions
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_are_drawn() -> None:
    draws = [parts_of(30, repetitions=3, generator=torch.Generator().manual_seed(s))[0].tolist() for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    with pytest.raises(InputError, match="give a `generator`"):
        parts_of(30, repetitions=3, generator=None)
    with pytest.raises(InputError, match="repetitions is 0"):
        parts_of(30, repetitions=0, generator=None)
