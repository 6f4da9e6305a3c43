from __future__ import annotations

import numpy as np
import pytest
import torch

from warp_unlearning.data.image_digests import image_digests
from warp_unlearning.data.preprocess import Pixels, load_data, pixels_of
from warp_unlearning.errors import InputError


def test_an_image_is_known_again_after_any_normalisation() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (300, 3, 4, 4), dtype=np.uint8)
    exact = torch.from_numpy(raw.astype(np.float64) / 255)
    expected = image_digests(exact)
    assert len(set(expected)) == 300
    for mean, std in ((0.0, 1.0), (0.4734, 0.2513), (-3.0, 7.1)):
        pixels = Pixels((3, 4, 4), (mean,) * 3, (std,) * 3)
        assert image_digests(pixels.images(pixels.inputs(exact.float()))) == expected


def test_digits_have_the_digests_of_their_raw_values() -> None:
    data = load_data()
    images = pixels_of(data).images(data.train.x)
    sixteenths = (images.double() * 16).round() / 16
    assert image_digests(images) == image_digests(sixteenths)
    assert len({*image_digests(images)}) == len(torch.unique(sixteenths.flatten(1), dim=0))


@pytest.mark.parametrize("scale", [16, 255])
def test_rounding_moves_no_value_to_another(scale: int) -> None:
    exact = torch.arange(scale + 1, dtype=torch.float64)[:, None, None, None] / scale
    expected = image_digests(exact)
    assert len({*expected}) == scale + 1
    for error in (-1e-6, 1e-6):
        assert image_digests(exact + error) == expected


def test_one_value_place_or_shape_makes_another_image() -> None:
    image = torch.zeros(1, 1, 2, 8)
    changed = image.clone()
    changed[0, 0, 0, 0] = 1 / 255
    moved = image.clone()
    moved[0, 0, 1, 0] = 1 / 255
    found = [image_digests(i)[0] for i in (image, changed, moved, image.reshape(1, 1, 4, 4), image.reshape(1, 2, 1, 8))]
    assert len({*found}) == 5
    assert all(len(digest) == 16 for digest in found)


def test_many_images_and_none() -> None:
    images = torch.rand(5000, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    assert image_digests(images)[4500:] == image_digests(images[4500:])
    assert image_digests(images[:0]) == []


def test_what_is_no_batch_of_images() -> None:
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\); give \(n, channels, height, width\)"):
        image_digests(torch.zeros(3, 8, 8))
