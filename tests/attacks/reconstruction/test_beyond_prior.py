from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from warp_unlearning.attacks.reconstruction.beyond_prior import beyond_prior
from warp_unlearning.attacks.reconstruction.identification import Identification
from warp_unlearning.attacks.reconstruction.image_scores import ImageScores
from warp_unlearning.errors import InputError
from warp_unlearning.stats.intervals import Estimate


def scores(psnr) -> ImageScores:
    values = np.asarray(psnr, dtype=np.float64)
    return ImageScores(psnr=values, ssim=values / 100, mse=10 ** (-values / 10))


def named(low: float, value: float, high: float, *, n: int = 30) -> Identification:
    return Identification(Estimate(value, low, high), np.full(n, value), (20,) * n)


RNG = np.random.default_rng(20)
IMAGES = 12 + 4 * RNG.normal(size=30)
NOISE = RNG.normal(size=30)
CHANCE = named(0.42, 0.5, 0.58)


def test_the_gain_is_paired_and_against_the_better_blind_attack() -> None:
    found = scores(IMAGES + 1 + 0.5 * NOISE)
    result = beyond_prior(found, {"class mean": scores(IMAGES), "prior alone": scores(IMAGES - 3)}, level=0.9)
    assert result.best == "class mean"
    gap = 1 + 0.5 * NOISE
    low, high = stats.t.interval(0.9, 29, loc=gap.mean(), scale=stats.sem(gap))
    gain = result.gains["class mean"]
    assert (gain.low, gain.value, gain.high) == pytest.approx((low, gap.mean(), high))
    assert result.gains["prior alone"].value == pytest.approx(gap.mean() + 3)
    assert result.verdict == "beyond the prior"
    assert "the class mean's" in result.reason
    # Not paired, images that differ by 4 dB would hide it.
    assert stats.ttest_ind(found.psnr, IMAGES).pvalue > 0.1


def test_better_than_the_worse_blind_attack_alone_is_nothing() -> None:
    blind = {"class mean": scores(IMAGES - 6), "prior alone": scores(IMAGES + 1)}
    result = beyond_prior(scores(IMAGES + 0.1 * NOISE), blind, identification=CHANCE)
    assert result.best == "prior alone"
    assert result.gains["class mean"].low > 0
    assert result.verdict == "nothing beyond the prior"
    assert "1.0" in result.reason
    assert "below the prior alone's" in result.reason


def test_identification_alone_can_show_it_and_the_reason_says_which() -> None:
    blind = {"class mean": scores(IMAGES + 5)}
    result = beyond_prior(scores(IMAGES), blind, identification=named(0.6, 0.8, 0.9))
    assert result.verdict == "beyond the prior"
    assert result.reason.startswith("shown by nearer to the target than 0.800 [0.600, 0.900]")
    assert "not shown by: mean PSNR 5.00 dB below" in result.reason
    both = beyond_prior(scores(IMAGES + 9 + NOISE), blind, identification=named(0.6, 0.8, 0.9))
    assert "not shown" not in both.reason
    assert " and nearer to" in both.reason
    psnr = beyond_prior(scores(IMAGES + 9 + NOISE), blind, identification=CHANCE)
    assert psnr.reason.startswith("shown by mean PSNR")
    assert "not shown by: nearer" in psnr.reason


@pytest.mark.parametrize(
    ("gain", "share", "verdict"),
    [
        (-5.0, None, "nothing beyond the prior"),
        (-5.0, named(0.5, 0.6, 0.7), "nothing beyond the prior"),
        (-5.0, named(0.501, 0.6, 0.7), "beyond the prior"),
        (-5.0, named(0.3, 0.6, 0.8), "inconclusive"),
        (-5.0, named(0.1, 0.2, 0.3), "nothing beyond the prior"),
        (0.0, CHANCE, "nothing beyond the prior"),
        (1.0, CHANCE, "beyond the prior"),
    ],
)
def test_the_verdict_follows_the_intervals(gain, share, verdict) -> None:
    found = scores(IMAGES + gain + 0.1 * (NOISE - NOISE.mean()))
    assert beyond_prior(found, {"class mean": scores(IMAGES)}, identification=share).verdict == verdict


def test_an_attack_that_is_the_blind_one_shows_nothing() -> None:
    assert beyond_prior(scores(IMAGES), {"prior alone": scores(IMAGES)}).verdict == "nothing beyond the prior"


def test_wide_intervals_are_inconclusive() -> None:
    result = beyond_prior(scores([10.0, 20.0, 14.0]), {"class mean": scores([12.0, 15.0, 15.0])})
    assert result.verdict == "inconclusive"
    assert "too few images to exclude 1 dB or a share of 0.75" in str(result)


def test_one_image_has_no_interval() -> None:
    few = Identification(Estimate(1.0, 0.0, 1.0), np.array([1.0]), (38,))
    result = beyond_prior(scores([40.0]), {"class mean": scores([10.0])}, identification=few)
    assert result.verdict == "inconclusive"
    assert "one image has no interval; its PSNR is 30.00 dB above the class mean's" in result.reason
    assert "more than 1.000 of 38 decoys, rank test p = 0.026" in result.reason
    plain = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert plain["psnr_gain"] == {"class mean": {"value": 30.0, "low": None, "high": None}}


@pytest.mark.parametrize(
    ("share", "decoys", "verdict"),
    [
        (1.0, 39, "beyond the prior"),
        (0.98, 99, "inconclusive"),
        (0.99, 99, "beyond the prior"),
        (0.5, 999, "inconclusive"),
    ],
)
def test_one_image_is_judged_by_its_rank(share: float, decoys: int, verdict: str) -> None:
    alone = Identification(Estimate(share, 0.0, 1.0), np.array([share]), (decoys,))
    assert alone.rank_test() == pytest.approx((1 + round(decoys * (1 - share), 9)) / (decoys + 1))
    found = beyond_prior(scores([9.0]), {"class mean": scores([10.0])}, identification=alone)
    assert found.verdict == verdict
    assert beyond_prior(scores([90.0]), {"class mean": scores([10.0])}).verdict == "inconclusive"


def test_few_images_are_judged_by_their_ranks_too() -> None:
    two = Identification(Estimate(1.0, 0.4, 1.0), np.array([1.0, 1.0]), (80, 80))
    assert two.rank_tests() == pytest.approx(stats.chi2.sf(-4 * np.log(1 / 81), 4))
    found = beyond_prior(scores([9.0, 9.5]), {"class mean": scores([10.0, 10.0])}, identification=two)
    assert found.verdict == "beyond the prior"
    assert "rank tests of 2 images" in found.reason
    chance = Identification(Estimate(0.5, 0.0, 1.0), np.array([0.4, 0.6]), (80, 80))
    assert beyond_prior(scores([9.0, 9.5]), {"class mean": scores([10.0, 10.0])}, identification=chance).verdict != (
        "beyond the prior"
    )


def test_plain_data_says_all() -> None:
    result = beyond_prior(scores(IMAGES - 1), {"class mean": scores(IMAGES)}, identification=CHANCE)
    plain = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert set(plain) == {"verdict", "reason", "level", "best_blind", "psnr_gain", "identification"}
    assert (plain["verdict"], plain["best_blind"], plain["level"]) == (result.verdict, "class mean", 0.95)
    assert plain["identification"]["share"]["value"] == 0.5
    assert beyond_prior(scores(IMAGES), {"a": scores(IMAGES)}).as_json()["identification"] is None


def test_scores_of_other_images_are_refused() -> None:
    with pytest.raises(InputError, match="at least the class mean"):
        beyond_prior(scores(IMAGES), {})
    with pytest.raises(InputError, match="'class mean' has scores of 29 images"):
        beyond_prior(scores(IMAGES), {"class mean": scores(IMAGES[1:])})
    with pytest.raises(InputError, match="'identification' has scores of 3"):
        beyond_prior(scores(IMAGES), {"class mean": scores(IMAGES)}, identification=named(0.1, 0.5, 0.9, n=3))
    with pytest.raises(InputError, match="level is 0"):
        beyond_prior(scores(IMAGES), {"class mean": scores(IMAGES)}, level=0)
