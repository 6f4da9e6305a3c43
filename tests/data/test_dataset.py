import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from warp_unlearning.data.dataset import ImageData, Layout, RawPart, channel_moments, image_data

from warp_unlearning.errors import DataError, InputError


def images(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 5, 4, 3), dtype=np.uint8)


def built(train: RawPart | None = None, test: RawPart | None = None, layout: Layout = "nhwc") -> ImageData:
    return image_data(
        "mine",
        train=train or (images(6), np.arange(6) % 2),
        test=test or (images(4, 1), np.arange(4) % 2),
        classes=["a", "b"],
        layout=layout,
    )


def test_each_pixel_is_scaled_and_normalised_by_its_channel() -> None:
    raw = images(6)
    data = image_data(
        "mine",
        train=(raw, np.arange(6) % 2),
        test=(raw[:1], np.array([1])),
        classes=["a", "b"],
        layout="nhwc",
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
    )
    by_hand = (raw[3, 2, 1, 2] / 255 - 0.3) / 0.4
    assert float(data.train.x[3, 2, 2, 1]) == pytest.approx(by_hand, abs=1e-6)
    assert data.shape == (3, 5, 4)
    assert data.train.x.dtype == torch.float32
    assert data.train.y.dtype == torch.int64
    assert data.fill == pytest.approx((-2.5, -0.4 / 0.3, -0.75))


def test_default_moments_make_the_training_part_standard() -> None:
    data = built()
    torch.testing.assert_close(data.train.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_channel_moments_agree_with_numpy_over_several_chunks() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (2500, 2, 3, 3), dtype=np.uint8)
    raw[:, 1] = 7
    mean, std = channel_moments(raw, scale=255.0)
    assert mean == pytest.approx((raw / 255).mean((0, 2, 3)))
    assert std == pytest.approx(((raw[:, 0] / 255).std(), 1.0))


def test_floats_are_taken_as_they_are() -> None:
    x = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32)
    data = built((x, np.arange(6) % 2), (x[:2], np.array([0, 1])), "nd")
    np.testing.assert_array_equal(data.train.x.numpy(), x)
    assert data.shape == (7,)
    assert data.fill == (0.0,)


def test_digest_is_of_the_raw_data_and_not_of_its_layout_or_normalisation() -> None:
    raw, y = images(6), np.arange(6) % 2
    first_raw = raw.transpose(0, 3, 1, 2)
    last, first = built((raw, y), (raw, y)), built((first_raw, y.astype(np.uint8)), (first_raw, y), "nchw")
    assert last.digest == first.digest
    changed = raw.copy()
    changed[5, 4, 3, 2] ^= 1
    others = [
        built((changed, y), (raw, y)).digest,
        built((raw, y), (changed, y)).digest,
        built((raw, 1 - y), (raw, y)).digest,
        built((raw, y), (raw, 1 - y)).digest,
    ]
    assert len({last.digest, *others}) == 5


def test_raw_arrays_are_not_changed() -> None:
    x = np.ones((3, 2), dtype=np.float32)
    y = np.array([0, 1, 0])
    data = built((x, y), (x, y), "nd")
    data.train.x.zero_()
    data.train.y.zero_()
    assert x.sum() == 6
    assert y.sum() == 1


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((images(6), np.arange(6)), "has 2 in row 2; labels are 0 to 1"),
        ((images(6), np.array([0, 1, -1, 0, 0, 0])), "has -1 in row 2"),
        ((images(6), np.zeros(6)), "type float64"),
        ((images(6), np.zeros(5, dtype=int)), "6 examples and 5 labels"),
        ((images(0), np.zeros(0, dtype=int)), "empty"),
        ((images(6).astype(int), np.zeros(6, dtype=int)), "type int64"),
        ((images(6)[:, 0], np.zeros(6, dtype=int)), "4 axes"),
        ((images(6)[:, :3], np.zeros(6, dtype=int)), "both parts must be alike"),
        ((images(6) / 255, np.zeros(6, dtype=int)), "both parts must be alike"),
    ],
)
def test_parts_that_do_not_fit_are_refused(train: RawPart, message: str) -> None:
    with pytest.raises(DataError, match=message):
        built(train)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_the_first_row_that_is_not_finite_is_named(value: float) -> None:
    x = np.zeros((6, 2))
    x[4, 1] = x[5, 0] = value
    with pytest.raises(DataError, match="mine train x row 4 "):
        built((x, np.zeros(6, dtype=int)), (x[:2], np.zeros(2, dtype=int)), "nd")


@pytest.mark.parametrize("std", [(1.0, 1.0), (1.0, 1.0, 0.0)])
def test_moments_must_fit_the_channels(std: tuple[float, ...]) -> None:
    part = (images(2), np.array([0, 1]))
    with pytest.raises(InputError, match="3 values each"):
        image_data("mine", train=part, test=part, classes=["a", "b"], layout="nhwc", mean=(0.0, 0.0, 0.0), std=std)
