"""Crops and mirror images by hand beside a loop over images, on a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from warp_unlearning.data import sampling
from warp_unlearning.kernels.crop_flip import crop_flip, suits
from warp_unlearning.kernels.fusing import fusing

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def given(channels: int, fills: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    x = torch.randn(7, channels, 9, 6, generator=generator)
    drawn = sampling.draw_crop_flip(7, padding=3, flip=True, generator=generator)
    assert set(drawn[:, 2].tolist()) == {0, 1}
    return x.to(DEVICE), drawn.to(DEVICE), torch.randn(fills, generator=generator).to(DEVICE)


def by_hand(x: Tensor, drawn: Tensor, fill: Tensor) -> Tensor:
    found = torch.empty_like(x)
    for n, (down, right, mirrored) in enumerate(drawn.tolist()):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                v, u = row + down, (x.shape[3] - 1 - column if mirrored else column) + right
                inside = 0 <= v < x.shape[2] and 0 <= u < x.shape[3]
                found[n, :, row, column] = x[n, :, v, u] if inside else fill
    return found


@pytest.mark.parametrize(("channels", "fills"), [(1, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_every_pixel_is_where_a_loop_puts_it(channels: int, fills: int, layout: torch.memory_format) -> None:
    x, drawn, fill = given(channels, fills)
    found = crop_flip(x.contiguous(memory_format=layout), drawn, fill)
    assert torch.equal(found, by_hand(x, drawn, fill))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, sampling.crop_flip(x, drawn, fill))


def test_it_is_used_where_layers_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, drawn, fill = given(3, 3)
    expected = sampling.crop_flip(x, drawn, fill)
    monkeypatch.setattr(torch, "where", None)
    before = fusing.set(True)
    try:
        assert torch.equal(sampling.crop_flip(x, drawn, fill), expected)
    finally:
        fusing.reset(before)


def test_it_says_what_it_suits() -> None:
    x, drawn, fill = given(3, 3)
    assert suits(x, drawn, fill)
    assert not suits(x.clone().requires_grad_(), drawn, fill)
    assert not suits(x.long(), drawn, fill)
    assert not suits(x[:0], drawn[:0], fill)
    assert not suits(x, drawn.T.contiguous().T, fill)
