"""How near one image is to another: one number an image, shape (n,), in float64.

Images are (n, channels, height, width) with values in [0, 1]. Both are clamped to [0, 1] first, so that an attack gains
and loses nothing by values that no image has. A truth that lies outside by more than rounding is refused: it is a model
input, and its numbers would mean something else.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import InputError
from ...models.modes import full_precision

# Decibels of a perfect reconstruction, and of any with a smaller error than 10⁻¹⁰: a mean over images stays finite.
PSNR_CAP = 100.0

# Gaussian window of SSIM: 11 pixels wide with a deviation of 1.5.
_WINDOW, _DEVIATION = 11, 1.5
# What normalising an image and back may add to values in [0, 1].
_ROUNDING = 1e-3


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
    # Slow to import, and of no use to anything but this.
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


def feature_mse(model: nn.Module, pixels: Pixels, found: Tensor, truth: Tensor, *, batch_size: int = 256) -> Tensor:
    """The mean over classes of (logit of found − logit of truth)², of `model` in eval mode; `pixels` turns images into
    its inputs. Nothing is rounded to TF32.
    """
    if batch_size < 1:
        raise InputError(f"the batch size is {batch_size}; give at least 1")
    one, other = checked_images(found, truth)
    scorer = deepcopy(model).eval()
    with torch.no_grad(), full_precision():
        parts = [
            (_logits(scorer, pixels.inputs(a)) - _logits(scorer, pixels.inputs(b))).square().mean(1)
            for a, b in zip(torch.split(one, batch_size), torch.split(other, batch_size), strict=True)
        ]
    return torch.cat(parts).to(one.device)


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


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    like = next((p for p in model.parameters() if p.is_floating_point()), inputs)
    logits = model(inputs.to(like.device, like.dtype))
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the model returns {shape}; features are compared of models that return (batch, classes)")
    if not torch.isfinite(logits).all():
        raise InputError("the model has logits that are not finite; give a model that has not diverged")
    return logits.double()
