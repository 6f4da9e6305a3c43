from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy import stats
from torch import nn

from warp_unlearning.attacks.reconstruction.metrics import (
    PSNR_CAP,
    feature_mse,
    load_lpips,
    mse,
    psnr,
    score_images,
    ssim,
)
from warp_unlearning.data.preprocess import Pixels
from warp_unlearning.errors import InputError, WeightsError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchmetrics.functional.image import lpips as reference


PIXELS = Pixels((1, 4, 4), (0.3,), (0.5,))


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


def test_float32_is_scored_in_float64() -> None:
    truth, found = images(2, 1, 8, 8).float(), images(2, 1, 8, 8, seed=22).float()
    for metric in (mse, psnr, ssim):
        value = metric(found, truth)
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, metric(found.double(), truth.double()), rtol=1e-13, atol=0)


def network() -> nn.Sequential:
    torch.manual_seed(20)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 5))
    with torch.no_grad():
        model(torch.randn(50, 1, 4, 4))
    return model


def test_feature_mse_is_that_of_logits_in_eval_mode() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # More than go through the model at once.
    found, truth = images(300, 1, 4, 4) * 2 - 0.5, images(300, 1, 4, 4, seed=21)
    value = feature_mse(model, PIXELS, found, truth)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    scorer = model.double().eval().requires_grad_(False)
    for i in (0, 1, 255, 256, 299):
        one, other = (scorer((v[i : i + 1].clamp(0, 1) - 0.3) / 0.5) for v in (found, truth))
        assert float(value[i]) == pytest.approx(float((one - other).square().mean()), rel=1e-4)
    assert feature_mse(model, PIXELS, truth, truth).tolist() == [0] * 300


def test_a_model_without_logits_is_refused() -> None:
    truth = images(2, 1, 4, 4)
    with pytest.raises(InputError, match=r"returns \(2, 1, 4, 4\)"):
        feature_mse(nn.Identity(), PIXELS, truth, truth)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    nn.init.constant_(broken[1].weight, math.inf)
    with pytest.raises(InputError, match="logits that are not finite"):
        feature_mse(broken, PIXELS, truth, truth)


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


def alexnet() -> nn.Sequential:
    """The stack called `features` in torchvision's AlexNet, layer by layer."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
    )


def vgg16() -> nn.Sequential:
    """The stack called `features` in torchvision's VGG-16."""
    layers: list[nn.Module] = []
    before = 3
    for width in [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        before = width or before
    return nn.Sequential(*layers)


def drawn(stack: nn.Sequential) -> nn.Sequential:
    generator = torch.Generator().manual_seed(20)
    for p in stack.parameters():
        fan = p[0].numel() if p.dim() > 1 else 100
        nn.init.normal_(p, std=(2 / fan) ** 0.5, generator=generator)
    return stack.requires_grad_(False)


def state(stack: nn.Sequential) -> dict[str, torch.Tensor]:
    return {f"features.{name}": value for name, value in stack.state_dict().items()}


@pytest.fixture(scope="module")
def alex() -> nn.Sequential:
    return drawn(alexnet())


@pytest.fixture(scope="module")
def alex_file(alex, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "alexnet.safetensors"
    save_file({**state(alex), "classifier.1.weight": torch.zeros(2, 3)}, path)
    return path


def pair(n: int, channels: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(21)
    one, other = (torch.rand(n, channels, side, side + 3, generator=generator) for _ in range(2))
    return one, other


@pytest.mark.parametrize(("network", "build", "side"), [("alex", alexnet, 33), ("vgg", vgg16, 18)])
def test_it_is_what_torchmetrics_computes_of_the_same_weights(monkeypatch, tmp_path, network, build, side) -> None:
    stack = drawn(build())
    torch.save(state(stack), tmp_path / "backbone.pth")
    monkeypatch.setattr(reference, "_get_tv_model_features", lambda *_: stack)
    other = reference._LPIPS(net=network, pnet_rand=True)
    found, truth = pair(3, 3, side)
    own = load_lpips(tmp_path / "backbone.pth", network=network)
    wanted = other(found, truth, normalize=True).flatten()
    assert float(wanted.min()) > 0.01
    torch.testing.assert_close(own(found, truth), wanted.double(), rtol=1e-5, atol=1e-7)


def test_the_same_image_is_at_distance_0_and_grey_is_repeated(alex_file) -> None:
    own = load_lpips(alex_file, network="alex")
    found, truth = pair(2, 1, 32)
    assert own(truth, truth).tolist() == [0, 0]
    torch.testing.assert_close(own(found, truth), own(found.repeat(1, 3, 1, 1), truth.repeat(1, 3, 1, 1)))
    torch.testing.assert_close(own(found * 3 - 1, truth), own((found * 3 - 1).clamp(0, 1), truth))
    assert own.to("cpu")(found, truth).shape == (2,)


def test_torchmetrics_is_not_imported_before_it_is_used() -> None:
    code = (
        "import sys, warp_unlearning; from warp_unlearning.attacks.reconstruction import judge;"
        "sys.exit('torchmetrics' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_metric_stands_under_its_name_with_students_interval(alex_file) -> None:
    torch.manual_seed(20)
    model, lpips = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 35, 3)), load_lpips(alex_file, network="alex")
    found, truth = pair(5, 3, 32)
    pixels = Pixels((3, 32, 35), (0.2,) * 3, (0.5,) * 3)
    scores = score_images(found, truth, model=model, pixels=pixels, lpips=lpips)
    assert list(scores.metrics) == ["psnr", "ssim", "mse", "feature_mse", "lpips"]
    for name, metric in (("psnr", psnr), ("ssim", ssim), ("mse", mse), ("lpips", lpips)):
        np.testing.assert_array_equal(scores.metrics[name], metric(found, truth))
    np.testing.assert_array_equal(scores.feature_mse, feature_mse(model, pixels, found, truth))
    plain = json.loads(json.dumps(scores.as_json(), allow_nan=False))
    assert set(plain) == {"per_image", "summary"}
    for name, values in scores.metrics.items():
        low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
        assert plain["per_image"][name] == values.tolist()
        assert plain["summary"][name] == pytest.approx({"value": values.mean(), "low": low, "high": high})
    alone = score_images(found[:1], truth[:1]).as_json()
    assert alone["summary"]["psnr"] == {"value": alone["per_image"]["psnr"][0], "low": None, "high": None}
    assert "lpips" not in alone["per_image"]
    for half in ({"model": model}, {"pixels": pixels}):
        with pytest.raises(InputError, match="give both"):
            score_images(found, truth, **half)


def test_identical_images_have_the_cap_and_ssim_1() -> None:
    truth = images(3, 1, 8, 8)
    assert psnr(truth, truth).tolist() == [PSNR_CAP] * 3
    assert ssim(truth, truth).tolist() == pytest.approx([1, 1, 1])
    with pytest.raises(InputError, match="3 by 3"):
        ssim(truth[..., :2], truth[..., :2])


def test_images_that_do_not_fit_a_network_are_refused(alex_file) -> None:
    own = load_lpips(alex_file, network="alex")
    image = torch.rand(1, 3, 31, 31)
    assert own(image, 1 - image).isfinite().all()
    with pytest.raises(InputError, match="30 by 31 pixels"):
        own(image[..., :30, :], image[..., :30, :])
    with pytest.raises(InputError, match="4 channels"):
        own(torch.rand(1, 4, 40, 40), torch.rand(1, 4, 40, 40))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("features.3.bias"), "lacks 'features.3.bias', of 1 missing and 0 unknown"),
        (lambda s: s.update({"features.99.weight": torch.zeros(1)}), "holds 'features.99.weight'"),
        (lambda s: s.update({"features.0.weight": torch.zeros(64, 3, 7, 7)}), r"\(64, 3, 7, 7\), which should be"),
    ],
)
def test_weights_that_do_not_fit_are_one_clear_error(alex, alex_file, tmp_path, change, message) -> None:
    weights = dict(state(alex))
    change(weights)
    torch.save(weights, tmp_path / "backbone.pt")
    with pytest.raises(WeightsError, match=message):
        load_lpips(tmp_path / "backbone.pt", network="alex")
    with pytest.raises(WeightsError, match="give torchvision's weights of LPIPS network 'vgg'"):
        load_lpips(alex_file, network="vgg")
    with pytest.raises(WeightsError, match="the linear heads"):
        load_lpips(alex_file, network="alex", heads=alex_file)
    with pytest.raises(InputError, match="did you mean 'alex'"):
        load_lpips(alex_file, network="alexx")
