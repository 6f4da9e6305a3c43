"""Do reconstructions show more than an attacker knew before: better than blind attacks, or nearer to their own target?

Two things count. The *gain* is the mean over images of PSNR(found) − PSNR(blind), paired, against the blind attack that
has the higher mean PSNR (choosing the better one can only make the gain smaller). And the share of `identification`,
which sees a true image that is too noisy or too faint to have a good PSNR.

- "beyond the prior": the interval of the gain lies above 0, or that of the share above ½. Each happens by chance alone
  in at most (1 − level)/2 of the cases, 2.5 % for 95 %.
- "nothing beyond the prior": neither, and both intervals are narrow enough to mean something: they exclude a gain of
  1 dB and a share of ¾.
- "inconclusive": neither shown nor excluded.

A single image has no interval, and that of two or three is wider than what they show. Up to four images are therefore
also beyond the prior if they resemble their targets more than almost all decoys, by rank tests combined to one at
(1 − level)/2. For one image 39 decoys are the fewest; where it is not beyond the prior it is inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...errors import InputError
from ...stats import intervals
from ...stats.clusters import check_level
from ...stats.intervals import Estimate
from .identification import CHANCE, Identification
from .image_scores import ImageScores, plain_estimate

Verdict = Literal["beyond the prior", "nothing beyond the prior", "inconclusive"]

# What "nothing beyond the prior" must exclude: a gain in decibels, and a share of decoys.
GAIN_MARGIN, SHARE_MARGIN = 1.0, 0.75
# So many images are judged by ranks as well.
_FEW = 4


@dataclass(frozen=True, eq=False)
class BeyondPrior:
    """`gains` has the paired mean difference of PSNR to each blind attack, in decibels; `best` names the better one."""

    verdict: Verdict
    reason: str
    gains: Mapping[str, Estimate]
    best: str
    identification: Identification | None
    level: float

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "level": self.level,
            "best_blind": self.best,
            "psnr_gain": {name: plain_estimate(gain) for name, gain in self.gains.items()},
            "identification": None if self.identification is None else self.identification.as_json(),
        }


def beyond_prior(
    found: ImageScores,
    blind: Mapping[str, ImageScores],
    *,
    identification: Identification | None = None,
    level: float = 0.95,
) -> BeyondPrior:
    """Compare an attack with blind ones, such as "class mean" and "prior alone", on the same images in the same order.

    `identification` should be of the same level; without it only the gain decides.
    """
    check_level(level)
    if not blind:
        raise InputError("no blind attack is given to compare with; give at least the class mean")
    sizes = {name: len(scores) for name, scores in blind.items() if len(scores) != len(found)}
    if identification is not None and len(identification.shares) != len(found):
        sizes["identification"] = len(identification.shares)
    if sizes:
        name, size = next(iter(sizes.items()))
        raise InputError(f"{name!r} has scores of {size} images and the attack of {len(found)}; score the same images")
    gains = {name: intervals.mean(found.psnr - scores.psnr, level=level) for name, scores in blind.items()}
    best = max(blind, key=lambda name: float(blind[name].psnr.mean()))
    verdict = _verdict(gains[best], identification, images=len(found), level=level)
    return BeyondPrior(
        verdict, _reason(verdict, gains[best], best, identification, len(found)), gains, best, identification, level
    )


def _verdict(gain: Estimate, named: Identification | None, *, images: int, level: float) -> Verdict:
    if images <= _FEW and named is not None and named.rank_tests() <= (1 - level) / 2:
        return "beyond the prior"
    if images == 1:
        return "inconclusive"
    if gain.low > 0 or (named is not None and named.above_chance):
        return "beyond the prior"
    excluded = gain.high < GAIN_MARGIN and (named is None or named.share.high < SHARE_MARGIN)
    return "nothing beyond the prior" if excluded else "inconclusive"


def _reason(verdict: Verdict, gain: Estimate, best: str, named: Identification | None, images: int) -> str:
    if images == 1:
        told = (
            ""
            if named is None
            else (
                f"; it resembles its target more than {named.shares[0]:.3f} of {named.decoys[0]} decoys, rank test p = "
                f"{named.rank_test():.2g}"
            )
        )
        return f"one image has no interval; its PSNR is {_decibels(gain.value)} the {best}'s{told}"
    parts = {f"mean PSNR {_decibels(gain.value)} the {best}'s [{gain.low:+.2f}, {gain.high:+.2f}]": gain.low > 0}
    if named is not None:
        parts[f"nearer to the target than {named.share} of the decoys, chance being {CHANCE}"] = named.above_chance
    if images <= _FEW and named is not None:
        by_rank = verdict == "beyond the prior" and not any(parts.values())
        parts[f"rank tests of {images} images, p = {named.rank_tests():.2g}"] = by_rank
    if verdict == "beyond the prior":
        shown = " and ".join(text for text, holds in parts.items() if holds)
        other = "; not shown by: " + " and ".join(text for text, holds in parts.items() if not holds)
        return f"shown by {shown}{other if not all(parts.values()) else ''}"
    if verdict == "inconclusive":
        return f"{'; '.join(parts)}; too few images to exclude {GAIN_MARGIN:g} dB or a share of {SHARE_MARGIN:g}"
    return "; ".join(parts)


def _decibels(gain: float) -> str:
    return f"{abs(gain):.2f} dB {'above' if gain >= 0 else 'below'}"
