from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from warp_unlearning.attacks.reconstruction import image_metrics
from warp_unlearning.attacks.reconstruction.image_scores import ImageScores, score_images
from warp_unlearning.attacks.reconstruction.lpips import Lpips
from warp_unlearning.data.preprocess import Pixels
from warp_unlearning.errors import InputError

PIXELS = Pixels((1, 8, 8), (0.2,), (0.5,))


def pair(n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(20)
    one, other = (torch.rand(n, 1, 8, 8, generator=generator) for _ in range(2))
    return one, other


class Half(Lpips):
    """A distance that is known, in place of one that needs weights."""

    def __call__(self, found: torch.Tensor, truth: torch.Tensor, *, batch_size: int = 64) -> torch.Tensor:
        return torch.full((len(truth),), 0.5, dtype=torch.float64)


def test_every_metric_stands_under_its_name() -> None:
    torch.manual_seed(20)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    found, truth = pair()
    scores = score_images(found, truth, model=model, pixels=PIXELS, lpips=Half("alex", nn.Sequential(), ()))
    for name in ("psnr", "ssim", "mse"):
        np.testing.assert_array_equal(getattr(scores, name), getattr(image_metrics, name)(found, truth))
    np.testing.assert_array_equal(scores.feature_mse, image_metrics.feature_mse(model, PIXELS, found, truth))
    assert scores.lpips.tolist() == [0.5] * 5
    assert list(scores.metrics) == ["psnr", "ssim", "mse", "feature_mse", "lpips"]
    assert len(scores) == 5


def test_the_summary_is_students_interval_over_images() -> None:
    scores = score_images(*pair())
    assert list(scores.metrics) == ["psnr", "ssim", "mse"]
    for name, found in scores.summary(level=0.9).items():
        values = scores.metrics[name]
        low, high = stats.t.interval(0.9, 4, loc=values.mean(), scale=stats.sem(values))
        assert (found.low, found.value, found.high) == pytest.approx((low, values.mean(), high))


def test_plain_data_has_null_for_the_interval_of_one_image() -> None:
    several = json.loads(json.dumps(score_images(*pair()).as_json(level=0.9), allow_nan=False))
    assert several["images"] == len(several["per_image"]["ssim"]) == 5
    assert several["level"] == 0.9
    assert several["summary"]["mse"]["low"] < several["summary"]["mse"]["value"] < several["summary"]["mse"]["high"]
    one = json.loads(json.dumps(score_images(*pair(1)).as_json(), allow_nan=False))
    assert one["summary"]["psnr"] == {"value": one["per_image"]["psnr"][0], "low": None, "high": None}
    assert "lpips" not in one["per_image"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="give both"):
        score_images(*pair(), model=nn.Identity())
    with pytest.raises(InputError, match="give both"):
        score_images(*pair(), pixels=PIXELS)
    with pytest.raises(InputError, match="level is 2"):
        score_images(*pair()).summary(level=2)
    with pytest.raises(InputError, match="mean of no values"):
        ImageScores(*[np.empty(0)] * 3).summary()
