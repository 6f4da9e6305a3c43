from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.symmetry.norm_features import batch_norm_features


@given(st.integers(1, 5), st.integers(2, 6), st.floats(0.3, 0.95) | st.just(1.0), st.booleans())
def test_batch_norm_features_are_the_leading_channels(
    kit: Any, count: int, channels: int, energy: float, image: bool
) -> None:
    norm: nn.Module = nn.BatchNorm2d(channels) if image else nn.BatchNorm1d(channels)
    model = kit.built(lambda: nn.Sequential(nn.Identity(), norm))
    shape = (count, channels, 2, 3) if image else (count, channels)
    batches = [kit.normal(*shape, seed=i) for i in range(2)]
    found = batch_norm_features(model, batches, energy, "energy")
    assert set(found) == {"1.weight", "1.bias"}
    rows = torch.cat([b.movedim(1, -1).reshape(-1, channels) for b in batches])
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum()
    assume(bool(((share - energy).abs() > 1e-9).all()) or energy == 1)
    rank = int((values > 1e-7 * values[0]).sum()) if energy == 1 else int((share < energy).sum()) + 1
    basis = found["1.weight"].basis
    assert basis.shape == (channels, rank)
    torch.testing.assert_close(basis @ basis.T, right[:rank].T @ right[:rank], rtol=1e-6, atol=1e-8)
    assert all(len(m._forward_pre_hooks) == 0 for m in model.modules())


def test_a_batch_norm_without_parameters_has_no_features(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Linear(3, 3)))
    model.append(nn.BatchNorm1d(3, affine=False).double())
    assert batch_norm_features(model.eval(), [kit.normal(4, 3)], 0.9, "energy") == {}
