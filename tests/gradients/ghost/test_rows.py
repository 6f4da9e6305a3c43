from __future__ import annotations

import pytest
import torch

from warp_unlearning.gradients.ghost.rows import padded, padded_rows


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 0), (-1, 1)])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 4, 4), (3, 2, 3, 3)])
def test_padded_rows_are_the_padded_image(
    layout: torch.memory_format, padding: tuple[int, int], shape: tuple[int, ...]
) -> None:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    # As a part of a larger batch, which does not begin where its memory does.
    for x in (drawn, drawn[1:], drawn[:, :, 1:]):
        grid = padded(x, padding)
        rows, size = padded_rows(x, padding)
        assert grid.is_contiguous()
        assert rows.is_contiguous()
        assert size == tuple(grid.shape[1:3])
        assert rows.equal(grid.flatten(1, 2))
    down, right = (max(0, p) for p in padding)
    whole = padded(drawn, padding)
    inside = whole[:, down : whole.shape[1] - down, right : whole.shape[2] - right].permute(0, 3, 1, 2)
    cut = -min(0, padding[0])
    assert inside.equal(drawn[:, :, cut : shape[2] - cut])
