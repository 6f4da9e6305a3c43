"""How near one image is to another: one number an image, shape (n,), in float64.

Images are (n, channels, height, width) with values in [0, 1]. Both are clamped to [0, 1] first, so that an attack gains
and loses nothing by values that no image has. A truth that lies outside by more than rounding is refused: it is a model
input, and its numbers would mean something else.

LPIPS is a distance in the features of a network trained on ImageNet, weighted to agree with people. With f_l the
features of slice l, each pixel's vector divided by its length, h and w running over its pixels, and v_l the weights of
its linear head, LPIPS(a, b) = Σ_l mean_hw Σ_c v_lc (f_l(a) − f_l(b))²_chw. The weights of the network are not part of
this package: they are read from a file that the user names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import InputError, WeightsError, nearest
from ...gpu.precision import full_precision
from ...models.weights import read_weights
from ...stats import intervals
from ...stats.area import LEVEL
from ...stats.intervals import Estimate
from ...stats.roc import Floats

# Decibels of a perfect reconstruction, and of any with a smaller error than 10⁻¹⁰: a mean over images stays finite.
PSNR_CAP = 100.0

# Gaussian window of SSIM: 11 pixels wide with a deviation of 1.5.
_WINDOW, _DEVIATION = 11, 1.5
# What normalising an image and back may add to values in [0, 1].
_ROUNDING = 1e-3
# Images at once through the model and through the network of LPIPS.
_LOGITS_AT_ONCE, _FEATURES_AT_ONCE = 256, 64
# LPIPS takes images in [−1, 1] to the scale of ImageNet's channels.
_SHIFT, _SCALE, _EPS = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450), 1e-8


def mse(found: Tensor, truth: Tensor) -> Tensor:
    """The mean of (found − truth)² over channels and pixels."""
    one, other = checked_images(found, truth)
    return (one - other).square().flatten(1).mean(1)


def psnr(found: Tensor, truth: Tensor) -> Tensor:
    """−10 log₁₀ MSE in decibels (the largest value is 1), at most `PSNR_CAP`."""
    return -10 * mse(found, truth).clamp(min=10 ** (-PSNR_CAP / 10)).log10()


def ssim(found: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity for a data range of 1, over a Gaussian window of 11 pixels with deviation 1.5, images
    mirrored at their borders. An image with a side below 11 has the window k, the largest odd number of pixels that
    fits, with deviation 1.5 k / 11 (7 pixels and 0.95 on 8×8 digits), so its values compare only with those of images
    of the same size.
    """
    # Slow to import.
    from torchmetrics.functional.image import structural_similarity_index_measure

    one, other = checked_images(found, truth)
    side = min(one.shape[-2:])
    if side < 3:
        raise InputError(f"images of {tuple(one.shape[-2:])} pixels have no structure to compare; SSIM needs 3 by 3")
    window = min(_WINDOW, side - 1 + side % 2)
    # float64 also because a convolution in float32 may be rounded to TF32, and a variance is a difference of two.
    value = structural_similarity_index_measure(
        one, other, sigma=_DEVIATION * window / _WINDOW, kernel_size=window, data_range=1.0, reduction="none"
    )
    assert isinstance(value, Tensor)
    return value.reshape(len(one))


def feature_mse(model: nn.Module, pixels: Pixels, found: Tensor, truth: Tensor) -> Tensor:
    """The mean over classes of (logit of found − logit of truth)², of `model` in eval mode; `pixels` turns images into
    its inputs. Nothing is rounded to TF32.
    """
    scorer = deepcopy(model).eval()
    with torch.no_grad(), full_precision():
        parts = [
            (_logits(scorer, pixels.inputs(a)) - _logits(scorer, pixels.inputs(b))).square().mean(1)
            for a, b in _batches(found, truth, _LOGITS_AT_ONCE)
        ]
    return torch.cat(parts).to(truth.device)


@dataclass(frozen=True, eq=False)
class ImageScores:
    """One number an image, (n,): PSNR in decibels and SSIM are better when larger, the others when smaller.

    `feature_mse` is None where no model was given, `lpips` where its weights were not.
    """

    psnr: Floats
    ssim: Floats
    mse: Floats
    feature_mse: Floats | None = None
    lpips: Floats | None = None

    def __len__(self) -> int:
        return len(self.psnr)

    @property
    def metrics(self) -> dict[str, Floats]:
        """The metrics that were computed, by name."""
        names = ("psnr", "ssim", "mse", "feature_mse", "lpips")
        return {name: values for name in names if (values := getattr(self, name)) is not None}

    def summary(self) -> dict[str, Estimate]:
        """The mean of every metric over the images, with Student's interval; that of one image is without bounds."""
        return {name: intervals.mean(values, level=LEVEL) for name, values in self.metrics.items()}

    def as_json(self) -> dict[str, object]:
        """Plain data: each metric's list and its summary, null for a bound that is not there."""
        return {
            "per_image": {name: values.tolist() for name, values in self.metrics.items()},
            "summary": {name: plain_estimate(found) for name, found in self.summary().items()},
        }


def score_images(
    found: Tensor,
    truth: Tensor,
    *,
    model: nn.Module | None = None,
    pixels: Pixels | None = None,
    lpips: Lpips | None = None,
) -> ImageScores:
    """The scores of images found, (n, channels, height, width) in [0, 1] and clamped to it, against the true ones.

    Feature MSE needs the `model` and the `pixels` that turn images into its inputs.
    """
    if (model is None) != (pixels is None):
        raise InputError("one of `model` and `pixels` is missing; give both for the feature MSE, or neither")
    return ImageScores(
        psnr=_array(psnr(found, truth)),
        ssim=_array(ssim(found, truth)),
        mse=_array(mse(found, truth)),
        feature_mse=None if model is None or pixels is None else _array(feature_mse(model, pixels, found, truth)),
        lpips=None if lpips is None else _array(lpips(found, truth)),
    )


def plain_estimate(estimate: Estimate) -> dict[str, float | None]:
    """Plain data of a mean and its interval: a bound that is infinite, as for one image, is null."""
    low, high = (end if np.isfinite(end) else None for end in (estimate.low, estimate.high))
    return {"value": estimate.value, "low": low, "high": high}


# Layers of torchvision's `features`: (channels, kernel, stride, padding) of a convolution, which a ReLU follows, and
# (kernel, stride) of a max-pool; the index of the layer before which each slice of LPIPS ends; and the least side.
_VGG = [((width, 3, 1, 1),) * count + ((2, 2),) for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))]
_ALEX = ((64, 11, 4, 2), (3, 2), (192, 5, 1, 2), (3, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
_NETWORKS: Mapping[str, tuple[Sequence[tuple[int, ...]], tuple[int, ...], int]] = {
    "alex": (_ALEX, (2, 5, 8, 10, 12), 31),
    "vgg": (tuple(layer for part in _VGG for layer in part)[:-1], (4, 9, 16, 23, 30), 16),
}


@dataclass(frozen=True, eq=False)
class Lpips:
    """The distance LPIPS, ready to be called; `heads` has v_l, (channels,), for each slice of `features`. An image with
    a single channel is repeated.
    """

    network: str
    features: nn.Sequential
    heads: tuple[Tensor, ...]

    def to(self, device: torch.device | str) -> Lpips:
        """The same distance, computed on `device`; the features are moved, not copied."""
        return Lpips(self.network, self.features.to(device), tuple(head.to(device) for head in self.heads))

    def __call__(self, found: Tensor, truth: Tensor) -> Tensor:
        """LPIPS of every pair of images, (n,), in float64 on the truth's device."""
        pairs = _batches(found, truth, _FEATURES_AT_ONCE)
        channels, *sides = truth.shape[1:]
        if channels not in (1, 3):
            raise InputError(f"images have {channels} channels; LPIPS is defined for 1 or 3")
        least = _NETWORKS[self.network][2]
        if min(sides) < least:
            raise InputError(
                f"images are {sides[0]} by {sides[1]} pixels and LPIPS with {self.network!r} needs at least {least} by "
                f"{least}; leave LPIPS out"
            )
        with torch.no_grad(), full_precision():
            return torch.cat([self._distance(a, b) for a, b in pairs]).to(truth.device)

    def _distance(self, one: Tensor, other: Tensor) -> Tensor:
        total = torch.zeros(len(one), dtype=torch.float64, device=self.heads[0].device)
        for a, b, head in zip(self._slices(one), self._slices(other), self.heads, strict=True):
            total += ((a - b).square() * head[:, None, None]).sum(1).mean((1, 2)).double()
        return total

    def _slices(self, images: Tensor) -> list[Tensor]:
        x = images.to(self.heads[0]).expand(-1, 3, -1, -1) * 2 - 1
        shift, scale = (torch.tensor(v, device=x.device, dtype=x.dtype)[:, None, None] for v in (_SHIFT, _SCALE))
        x = (x - shift) / scale
        found, ends = [], _NETWORKS[self.network][1]
        for start, end in zip((0, *ends), ends, strict=False):
            x = self.features[start:end](x)
            found.append(x / (x.square().sum(1, keepdim=True) + _EPS).sqrt())
        return found


def load_lpips(backbone: Path, *, network: str = "vgg", heads: Path | None = None) -> Lpips:
    """LPIPS from weight files: `backbone` is torchvision's state dict of "vgg" (VGG-16) or "alex" (AlexNet), with or
    without its classifier; `heads` holds lin0.model.1.weight to lin4.model.1.weight, and is the file that comes with
    torchmetrics where it is left out.
    """
    if network not in _NETWORKS:
        raise InputError(f"there is no LPIPS network {network!r}; {nearest(network, _NETWORKS)}")
    layers: list[nn.Module] = []
    before = 3
    for layer in _NETWORKS[network][0]:
        if len(layer) == 2:
            layers.append(nn.MaxPool2d(layer[0], stride=layer[1]))
        else:
            layers += [nn.Conv2d(before, layer[0], layer[1], stride=layer[2], padding=layer[3]), nn.ReLU()]
            before = layer[0]
    stack = nn.Sequential(*layers)
    wanted = {f"features.{name}": tuple(value.shape) for name, value in stack.state_dict().items()}
    state = _fitting(Path(backbone), wanted, what=f"torchvision's weights of LPIPS network {network!r}")
    stack.load_state_dict({name.removeprefix("features."): value for name, value in state.items()})
    widths = [wanted[f"features.{end - 2}.bias"][0] for end in _NETWORKS[network][1]]
    names = {f"lin{i}.model.1.weight": (1, width, 1, 1) for i, width in enumerate(widths)}
    place = _default_heads(network) if heads is None else Path(heads)
    linear = _fitting(place, names, what=f"the linear heads of LPIPS network {network!r}")
    # float32 whatever the files hold: halves are too coarse for the squares.
    return Lpips(network, stack.float().eval().requires_grad_(False), tuple(linear[n].float().flatten() for n in names))


def checked_images(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float64 on the truth's device, clamped to [0, 1]; what are no images, or not of one shape, is refused."""
    for images, what in ((found, "the images found"), (truth, "the true images")):
        check_images(images, what=what)
    if found.shape != truth.shape:
        raise InputError(
            f"the images found have shape {tuple(found.shape)} and the true ones {tuple(truth.shape)}; "
            "give one image found for each true one"
        )
    low, high = float(truth.min()), float(truth.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise InputError(
            f"the true images have values from {low:.3g} to {high:.3g}, outside [0, 1]; "
            "turn model inputs into images first, with Pixels.images"
        )
    one, other = (images.detach().to(truth.device, torch.float64).clamp(0, 1) for images in (found, truth))
    return one, other


def check_images(images: Tensor, *, what: str) -> None:
    """Refuse all but a floating-point tensor (n, channels, height, width) of finite values, n at least 1."""
    if images.dim() != 4 or not images.numel():
        raise InputError(f"{what} have shape {tuple(images.shape)}; give (n, channels, height, width), none of them 0")
    if not images.is_floating_point():
        raise InputError(f"{what} are {images.dtype}; give floating-point values in [0, 1]")
    bad = int((~torch.isfinite(images)).sum())
    if bad:
        raise InputError(f"{what} have {bad} values that are not finite; leave out the runs that diverged")


def _batches(found: Tensor, truth: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    one, other = checked_images(found, truth)
    return list(zip(torch.split(one, size), torch.split(other, size), strict=True))


def _array(values: Tensor) -> Floats:
    return np.asarray(values.cpu().numpy(), dtype=np.float64)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    like = next((p for p in model.parameters() if p.is_floating_point()), inputs)
    logits = model(inputs.to(like.device, like.dtype))
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the model returns {shape}; features are compared of models that return (batch, classes)")
    if not torch.isfinite(logits).all():
        raise InputError("the model has logits that are not finite; give a model that has not diverged")
    return logits.double()


def _fitting(path: Path, wanted: Mapping[str, tuple[int, ...]], *, what: str) -> dict[str, Tensor]:
    """The weights of a file, whose names and shapes must be those wanted."""
    state = {n: t for n, t in read_weights(path).state.items() if not n.startswith("classifier.")}
    missing, unknown = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    shapes = [n for n in wanted if n in state and tuple(state[n].shape) != wanted[n]]
    if missing or unknown:
        names = [f"lacks {missing[0]!r}"] if missing else []
        names += [f"holds {unknown[0]!r}"] if unknown else []
        fault = f"{' and '.join(names)}, of {len(missing)} missing and {len(unknown)} unknown names"
        raise WeightsError(f"{path} {fault}; give {what}")
    if shapes:
        fault = f"has {shapes[0]!r} of shape {tuple(state[shapes[0]].shape)}, which should be {wanted[shapes[0]]}"
        raise WeightsError(f"{path} {fault}; give {what}")
    return state


def _default_heads(network: str) -> Path:
    """The heads that torchmetrics brings, found without importing it, which is slow."""
    spec = find_spec("torchmetrics")
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError("the linear heads of LPIPS come with torchmetrics, which is not installed; give `heads`")
    return Path(spec.submodule_search_locations[0]) / "functional" / "image" / "lpips_models" / f"{network}.pth"
