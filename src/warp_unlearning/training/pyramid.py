"""How far two images are apart, level by level of their Laplacian pyramids."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor
from torch.nn import functional as F


def laplacian_pyramid(images: Tensor) -> list[Tensor]:
    """The bands of images (n, c, h, w), finest first, and what is left below them.

    Band j is G_j − up(G_{j+1}), where G_0 are the images and G_{j+1} averages G_j over 2 by 2 pixels; levels end where
    a side is odd or below 4. The bands sum to the images when each is brought to their size by repeating pixels.
    """
    levels = [images]
    while all(size % 2 == 0 and size >= 4 for size in levels[-1].shape[2:]):
        levels.append(F.avg_pool2d(levels[-1], 2))
    bands = [fine - F.interpolate(coarse, scale_factor=2.0, mode="nearest") for fine, coarse in pairwise(levels)]
    return [*bands, levels[-1]]


def pyramid_distance(images: Tensor, others: Tensor) -> Tensor:
    """Σ_j mean |band_j(images − others)|: the mean absolute difference in each band, so that the few coarse numbers
    count as much as the many fine ones. A scalar.
    """
    bands = laplacian_pyramid(images - others)
    total = bands[0].abs().mean()
    for band in bands[1:]:
        total = total + band.abs().mean()
    return total
