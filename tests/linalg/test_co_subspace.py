from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.linalg.co_subspace import CoSubspace
from warp_unlearning.linalg.subspace import Subspace


def pair(seed: int, alive: list[bool], m: int) -> tuple[CoSubspace, Subspace]:
    """A subspace by what is orthogonal to it, and the same by its own basis, both from one orthogonal matrix."""
    rng = np.random.default_rng(seed)
    mask = np.array(alive)
    turn = np.linalg.qr(rng.normal(size=(mask.sum(), mask.sum())))[0]
    wide = np.zeros((len(alive), mask.sum()))
    wide[mask] = turn
    wide = torch.from_numpy(wide)
    return CoSubspace(wide[:, :m], torch.from_numpy(mask), 0.9), Subspace(wide[:, m:], 0.9)


masks = st.lists(st.booleans(), min_size=1, max_size=9).filter(any)


@given(alive=masks, seed=st.integers(0, 999), draw=st.data())
def test_both_forms_are_the_same_subspace(alive: list[bool], seed: int, draw: st.DataObject) -> None:
    m = draw.draw(st.integers(0, sum(alive)))
    co, own = pair(seed, alive, m)
    assert co.rank == own.rank == co.basis.shape[1]
    torch.testing.assert_close(co.basis @ co.basis.mT, own.basis @ own.basis.mT)
    rows = torch.randn(3, len(alive), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    within = rows * co.alive
    torch.testing.assert_close(co.project_out(rows), own.project_out(within))
    assert co.missed(rows) == pytest.approx(own.missed(rows), abs=1e-12)


@given(alive=masks, seed=st.integers(0, 999), draw=st.data())
def test_both_forms_lose_their_last_coordinate_alike(alive: list[bool], seed: int, draw: st.DataObject) -> None:
    alive = [*alive, True]
    m = draw.draw(st.integers(0, sum(alive)))
    co, own = (subspace.without_last() for subspace in pair(seed, alive, m))
    rows = torch.randn(3, len(alive) - 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = rows * torch.tensor(alive[:-1])
    torch.testing.assert_close(co.project_out(rows), own.project_out(rows), atol=1e-7, rtol=0)


def test_the_type_can_be_changed() -> None:
    co, _ = pair(0, [True] * 4, 1)
    assert co.to(torch.float32).basis.dtype == torch.float32
    assert co.to(torch.float32).captured == 0.9
