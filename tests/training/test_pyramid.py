from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.training.pyramid import laplacian_pyramid, pyramid_distance


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "sizes"),
    [((8, 8), [(8, 8), (4, 4), (2, 2)]), ((12, 4), [(12, 4), (6, 2)]), ((5, 8), [(5, 8)]), ((2, 2), [(2, 2)])],
)
def test_levels_halve_until_a_side_is_odd_or_small(size: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    assert [tuple(band.shape[2:]) for band in laplacian_pyramid(random(1, 2, *size))] == sizes


@given(st.sampled_from([(8, 8), (16, 8), (4, 12), (6, 6)]), st.integers(0, 10**6))
def test_bands_sum_to_the_image_and_have_no_mean_of_four(size: tuple[int, int], seed: int) -> None:
    images = random(2, 3, *size, seed=seed)
    *bands, rest = laplacian_pyramid(images)
    total = rest
    for band in reversed(bands):
        total = band + total.repeat_interleave(2, 2).repeat_interleave(2, 3)
        four = band[:, :, ::2, ::2] + band[:, :, 1::2, ::2] + band[:, :, ::2, 1::2] + band[:, :, 1::2, 1::2]
        assert float(four.abs().max()) < 1e-12
    torch.testing.assert_close(total, images)


def test_a_distance_by_hand() -> None:
    other = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    image = other.clone()
    image[0, 0, 0, 0] = 1.0
    # Fine band: 3/4 once and −1/4 three times over 16 pixels; below: 1/4 once over 4.
    assert float(pyramid_distance(image, other)) == pytest.approx((0.75 + 3 * 0.25) / 16 + 0.25 / 4)
    assert float(pyramid_distance(other, image)) == pytest.approx(float(pyramid_distance(image, other)))
    assert float(pyramid_distance(image, image)) == 0.0
    # A shift of everything is seen by the lowest band alone.
    assert float(pyramid_distance(image + 0.5, image)) == pytest.approx(0.5)
