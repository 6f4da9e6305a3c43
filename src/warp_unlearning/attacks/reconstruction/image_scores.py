"""Every metric of every image, and their means with intervals over images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import InputError
from ...stats import intervals
from ...stats.clusters import check_level
from ...stats.intervals import Estimate
from ...stats.roc import Floats
from .image_metrics import feature_mse, mse, psnr, ssim
from .lpips import Lpips


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
        """Those that were computed, by name."""
        every = {
            "psnr": self.psnr,
            "ssim": self.ssim,
            "mse": self.mse,
            "feature_mse": self.feature_mse,
            "lpips": self.lpips,
        }
        return {name: values for name, values in every.items() if values is not None}

    def summary(self, *, level: float = 0.95) -> dict[str, Estimate]:
        """The mean of every metric over the images, with Student's interval; that of one image is without bounds."""
        check_level(level)
        return {name: intervals.mean(values, level=level) for name, values in self.metrics.items()}

    def as_json(self, *, level: float = 0.95) -> dict[str, object]:
        """Plain data: the number of images, each metric's list and its summary, null for a bound that is not there."""
        return {
            "images": len(self),
            "level": level,
            "per_image": {name: values.tolist() for name, values in self.metrics.items()},
            "summary": {name: plain_estimate(found) for name, found in self.summary(level=level).items()},
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
    features = None if model is None or pixels is None else _array(feature_mse(model, pixels, found, truth))
    return ImageScores(
        psnr=_array(psnr(found, truth)),
        ssim=_array(ssim(found, truth)),
        mse=_array(mse(found, truth)),
        feature_mse=features,
        lpips=None if lpips is None else _array(lpips(found, truth)),
    )


def plain_estimate(estimate: Estimate) -> dict[str, float | None]:
    """Plain data of a mean and its interval: a bound that is infinite, as for one image, is null."""
    low, high = (end if np.isfinite(end) else None for end in (estimate.low, estimate.high))
    return {"value": estimate.value, "low": low, "high": high}


def _array(values: Tensor) -> Floats:
    return np.asarray(values.cpu().numpy(), dtype=np.float64)
