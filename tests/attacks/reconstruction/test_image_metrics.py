from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.attacks.reconstruction.image_metrics import PSNR_CAP, feature_mse, mse, psnr, ssim
from warp_unlearning.data.preprocess import Pixels
from warp_unlearning.errors import InputError


def images(*shape: int, seed: int = 20) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def looped_ssim(one: np.ndarray, other: np.ndarray, window: int) -> float:
    """Pixel by pixel: the Gaussian window laid over mirrored images, and the mean over pixels and channels."""
    radius, sigma = window // 2, 1.5 * window / 11
    line = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights = np.outer(line, line) / line.sum() ** 2
    values = []
    for a, b in zip(one, other, strict=True):
        a, b = (np.pad(v, radius, mode="reflect") for v in (a, b))
        for i in range(one.shape[1]):
            for j in range(one.shape[2]):
                p, q = (v[i : i + window, j : j + window] for v in (a, b))
                mp, mq = (weights * p).sum(), (weights * q).sum()
                vp, vq = (weights * (p - mp) ** 2).sum(), (weights * (q - mq) ** 2).sum()
                both = (weights * (p - mp) * (q - mq)).sum()
                values.append((2 * mp * mq + 1e-4) * (2 * both + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(values))


@pytest.mark.parametrize(
    ("shape", "window"), [((1, 3, 3), 3), ((1, 8, 8), 7), ((3, 9, 20), 9), ((1, 11, 11), 11), ((3, 14, 12), 11)]
)
def test_ssim_is_a_loop_over_windows_that_fit(shape, window) -> None:
    one, other = images(2, *shape), images(2, *shape, seed=21)
    found = ssim(one, other)
    wanted = [looped_ssim(a.numpy(), b.numpy(), window) for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-12)


@given(st.integers(1, 4), st.integers(0, 999), st.floats(0.01, 3))
def test_mse_and_psnr_are_those_of_clamped_images(n, seed, reach) -> None:
    truth = images(n, 2, 4, 3, seed=seed)
    found = truth + reach * (images(n, 2, 4, 3, seed=seed + 1) - 0.5)
    wanted = [float(np.mean((np.clip(f, 0, 1) - t) ** 2)) for f, t in zip(found.numpy(), truth.numpy(), strict=True)]
    np.testing.assert_allclose(mse(found, truth), wanted, rtol=1e-12)
    np.testing.assert_allclose(psnr(found, truth), [-10 * math.log10(v) for v in wanted], rtol=1e-12)
    assert mse(found, truth).shape == psnr(found, truth).shape == (n,)


def test_a_known_error_has_its_decibels() -> None:
    truth = torch.full((2, 1, 8, 8), 0.5)
    assert psnr(truth + 0.1, truth).tolist() == pytest.approx([20, 20], abs=1e-5)


def test_identical_images_have_the_cap_and_ssim_1() -> None:
    truth = images(3, 1, 8, 8)
    assert psnr(truth, truth).tolist() == [PSNR_CAP] * 3
    assert psnr(truth + 1e-7, truth).max() <= PSNR_CAP
    assert ssim(truth, truth).tolist() == pytest.approx([1, 1, 1])


def test_values_no_image_has_change_nothing() -> None:
    truth = images(2, 1, 8, 8).round()
    found = truth * 7 - 3
    assert mse(found, truth).tolist() == [0, 0]
    assert ssim(found, truth).tolist() == pytest.approx([1, 1])


def test_float32_is_scored_in_float64() -> None:
    truth, found = images(2, 1, 8, 8).float(), images(2, 1, 8, 8, seed=22).float()
    for metric in (mse, psnr, ssim):
        value = metric(found, truth)
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, metric(found.double(), truth.double()), rtol=1e-13, atol=0)


PIXELS = Pixels((1, 4, 4), (0.3,), (0.5,))


def network() -> nn.Sequential:
    torch.manual_seed(20)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 5))
    with torch.no_grad():
        model(torch.randn(50, 1, 4, 4))
    return model


def test_feature_mse_is_that_of_logits_in_eval_mode() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, truth = images(7, 1, 4, 4) * 2 - 0.5, images(7, 1, 4, 4, seed=21)
    value = feature_mse(model, PIXELS, found, truth, batch_size=3)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    scorer = model.double().eval().requires_grad_(False)
    for i in range(7):
        one, other = (scorer((v[i : i + 1].clamp(0, 1) - 0.3) / 0.5) for v in (found, truth))
        assert float(value[i]) == pytest.approx(float((one - other).square().mean()), rel=1e-4)
    assert feature_mse(model, PIXELS, truth, truth).tolist() == [0] * 7


def test_a_model_without_logits_is_refused() -> None:
    truth = images(2, 1, 4, 4)
    with pytest.raises(InputError, match=r"returns \(2, 1, 4, 4\)"):
        feature_mse(nn.Identity(), PIXELS, truth, truth)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    nn.init.constant_(broken[1].weight, math.inf)
    with pytest.raises(InputError, match="logits that are not finite"):
        feature_mse(broken, PIXELS, truth, truth)
    with pytest.raises(InputError, match="batch size is 0"):
        feature_mse(network(), PIXELS, truth, truth, batch_size=0)


@pytest.mark.parametrize("metric", [mse, psnr, ssim])
@pytest.mark.parametrize(
    ("found", "truth", "message"),
    [
        (torch.rand(2, 1, 8, 8), torch.rand(3, 1, 8, 8), "one image found for each"),
        (torch.rand(1, 8, 8), torch.rand(1, 8, 8), "give .n, channels, height, width"),
        (torch.rand(0, 1, 8, 8), torch.rand(0, 1, 8, 8), "none of them 0"),
        (torch.full((1, 1, 8, 8), math.nan), torch.rand(1, 1, 8, 8), "64 values that are not finite"),
        (torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8) * 2 - 1, "Pixels.images"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.rand(1, 1, 8, 8), "uint8"),
    ],
)
def test_what_are_no_images_is_refused(metric, found, truth, message) -> None:
    with pytest.raises(InputError, match=message):
        metric(found, truth)


def test_ssim_needs_three_pixels() -> None:
    with pytest.raises(InputError, match="3 by 3"):
        ssim(images(1, 1, 2, 8), images(1, 1, 2, 8))
