from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.linalg.blending import all_blended, blend_weights, blended, missed_shares
from warp_unlearning.linalg.co_subspace import CoSubspace
from warp_unlearning.linalg.subspace import Subspace


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_shares_are_those_of_every_group_of_every_layer_in_turn() -> None:
    turn = torch.linalg.qr(normal(5, 5)).Q
    axis = torch.diag(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    thin, most = Subspace(turn[:, :2], 0.9), CoSubspace(turn[:, 4:], torch.ones(5, dtype=torch.bool), 0.9, 5)
    two, one = normal(2, 4, 5, seed=1), normal(1, 6, 3, seed=2)
    found = missed_shares([([thin, most], two), ([Subspace(axis[:, :1], 0.9)], one)])
    projectors = [turn[:, :2] @ turn[:, :2].mT, turn[:, :4] @ turn[:, :4].mT, axis]
    expected = [
        float((rows - rows @ projector).square().sum() / rows.square().sum())
        for rows, projector in zip([*two, *one], projectors, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


shares = st.floats(0, 1)


@given(pairs=st.lists(st.tuples(shares, shares), min_size=1, max_size=4), blend=st.floats(0.01, 1))
def test_the_weight_grows_with_what_is_missed_beyond_the_best(pairs: list[tuple[float, float]], blend: float) -> None:
    worst = torch.tensor([missed for missed, _ in pairs], dtype=torch.float64)
    found = blend_weights(worst, [best for _, best in pairs], blend)
    expected = [max(blend, 1 - best / missed) if missed > best else blend for missed, best in pairs]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_latest_is_taken_in_by_its_weight_and_gives_the_type() -> None:
    kept, latest = normal(2, 3, 3).float(), normal(2, 3, 3, seed=1)
    found = blended(kept, latest, torch.tensor(0.3))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, 0.7 * kept.double() + 0.3 * latest, rtol=1e-6, atol=1e-7)
    assert torch.equal(blended(kept, latest, torch.tensor(1.0)), latest)


def test_many_moments_are_blended_as_each_by_itself() -> None:
    kept = [normal(1, 3, 3), normal(2, 5, 5, seed=1)]
    latest = [normal(1, 3, 3, seed=2).float(), normal(2, 5, 5, seed=3).float()]
    weights = torch.tensor([0.1, 0.75])
    for found, before, now, weight in zip(all_blended(kept, latest, weights), kept, latest, weights, strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, blended(before, now, weight))
        torch.testing.assert_close(found.double(), (1 - weight) * before + weight * now, rtol=1e-6, atol=1e-6)
