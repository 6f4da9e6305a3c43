from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from warp_unlearning.data.digits import load_digits
from warp_unlearning.data.pixels import Pixels, pixels_of

from warp_unlearning.errors import InputError


@given(
    moments=st.lists(st.tuples(st.floats(-2, 2), st.floats(0.05, 3)), min_size=1, max_size=4),
    lead=st.lists(st.integers(1, 3), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_inputs_are_normalised_channel_by_channel_and_images_are_the_way_back(
    moments: list[tuple[float, float]], lead: list[int], seed: int
) -> None:
    mean, std = zip(*moments, strict=True)
    pixels = Pixels((len(mean), 2, 3), mean, std)
    shape = (*lead, len(mean), 2, 3)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    inputs = pixels.inputs(images)
    for c, (m, s) in enumerate(moments):
        torch.testing.assert_close(inputs[..., c, :, :], (images[..., c, :, :] - m) / s)
    torch.testing.assert_close(pixels.images(inputs), images)


def test_values_outside_are_not_clamped_and_the_precision_is_that_given() -> None:
    pixels = Pixels((1, 1, 1), (0.5,), (0.25,))
    for dtype in (torch.float32, torch.float64):
        found = pixels.images(torch.tensor([[[9.0]]], dtype=dtype))
        assert found.dtype == dtype
        assert float(found) == 2.75


def test_those_of_a_data_set_give_its_raw_values() -> None:
    data = load_digits()
    pixels = pixels_of(data)
    assert pixels.shape == (1, 8, 8)
    raw = pixels.images(data.train.x[:50]).double() * 16
    torch.testing.assert_close(raw, raw.round(), atol=1e-4, rtol=0)
    assert float(raw.min()) > -1e-3
    assert 15.9 < float(raw.max()) < 16.001


def test_a_data_set_without_images_is_refused() -> None:
    data = load_digits()
    rows = dataclasses.replace(data, train=dataclasses.replace(data.train, x=data.train.x.flatten(1)))
    with pytest.raises(InputError, match=r"digits has shape \(64,\)"):
        pixels_of(rows)


@pytest.mark.parametrize(
    ("shape", "mean", "std", "match"),
    [
        ((8, 8), (0.0,), (1.0,), r"\(8, 8\)"),
        ((0, 8, 8), (), (), r"\(0, 8, 8\)"),
        ((3, 8, 8), (0.0,), (1.0,), "1 means and 1 deviations"),
        ((1, 8, 8), (0.0,), (1.0, 1.0), "2 deviations"),
        ((1, 8, 8), (0.0,), (0.0,), "deviation 0"),
        ((1, 8, 8), (0.0,), (-1.0,), "deviation -1"),
        ((1, 8, 8), (0.0,), (float("nan"),), "deviation nan"),
        ((1, 8, 8), (float("inf"),), (1.0,), "inf"),
    ],
)
def test_moments_that_make_no_image_are_refused(
    shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...], match: str
) -> None:
    with pytest.raises(InputError, match=match):
        Pixels(shape, mean, std)


def test_a_first_use_in_inference_mode_leaves_later_ones_differentiable() -> None:
    pixels = Pixels((1, 2, 2), (0.4321,), (0.9876,))
    with torch.inference_mode():
        pixels.inputs(torch.zeros(1, 2, 2))
    images = torch.zeros(1, 2, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(pixels.inputs(images).sum(), images)
    torch.testing.assert_close(slope, torch.full((1, 2, 2), 1 / 0.9876))
