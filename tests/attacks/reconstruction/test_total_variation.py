from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.attacks.reconstruction.total_variation import total_variation


def looped(image: Tensor) -> float:
    channels, height, width = image.shape
    across = [
        abs(float(image[c, i, j + 1] - image[c, i, j]))
        for c in range(channels)
        for i in range(height)
        for j in range(width - 1)
    ]
    down = [
        abs(float(image[c, i + 1, j] - image[c, i, j]))
        for c in range(channels)
        for i in range(height - 1)
        for j in range(width)
    ]
    return sum(sum(side) / len(side) for side in (across, down) if side)


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 2**16))
def test_the_mean_of_neighbours_differences_by_loops(shape: tuple[int, int, int], seed: int) -> None:
    images = torch.rand(2, 3, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = total_variation(images)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert float(found[i, j]) == pytest.approx(looped(images[i, j]), abs=1e-12)


def test_a_flat_image_has_none_and_a_step_its_height() -> None:
    flat = torch.full((1, 4, 5), 0.3)
    assert float(total_variation(flat)) == 0
    step = torch.zeros(1, 2, 4)
    step[:, :, 2:] = 0.6
    assert float(total_variation(step)) == pytest.approx(0.6 / 3)
