"""Do reconstructions show more than an attacker knew before: better than blind attacks, or nearer to their own target?

Two things count. The *gain* is the mean over images of PSNR(found) − PSNR(blind), paired, against the blind attack that
has the higher mean PSNR (choosing the better one can only make the gain smaller). The *share* of a target t with
reconstruction f is that of decoys, other images of its class, which f resembles less than t, ties counting ½. An attack
that saw nothing has ½ on average, however good its images are: t and the decoys are then exchangeable, as long as the
decoys are drawn as the targets were (loss and all) and neither was among the attacker's own images.

Resemblance is the cosine of f − μ and d − μ, with μ the mean of the decoys and the target (of the target too, so that
it stays exchangeable with them). Not MSE: taking μ from both images leaves their MSE as it is, and to a faint
reconstruction the nearest images in MSE are those of low contrast; SSIM, too, compares contrasts. The cosine takes from
both images what the class has in common, so that a blurry mean resembles nothing (μ itself ties with all, ½), and it
ignores the contrast, which gradients often do not show. On digits of which an attacker sees 15 % of the contrast about
the class mean, under noise, the shares are 0.85 by the cosine, 0.66 by MSE and 0.63 by SSIM; on images that are noisy
but of full contrast all three agree to 0.02. It is signed: a negative of the target has a share near 0.

- "beyond the prior": the interval of the gain lies above 0, or that of the share above ½. Each happens by chance alone
  in at most (1 − level)/2 of the cases, 2.5 % for 95 %.
- "nothing beyond the prior": neither, and both intervals exclude a gain of 1 dB and a share of ¾.
- "inconclusive": neither shown nor excluded.

A single image has no interval, and that of two or three is wider than what they show. Up to four images are therefore
also beyond the prior if they resemble their targets more than almost all decoys, by rank tests combined to one at
(1 − level)/2. For one image 39 decoys are the fewest; where it is not beyond the prior it is inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import InputError
from ...stats import intervals
from ...stats.intervals import Estimate, Spread, check_level
from ...stats.roc import Floats
from .blind import BlindGuess
from .metrics import ImageScores, Lpips, check_images, checked_images, plain_estimate, score_images

Verdict = Literal["beyond the prior", "nothing beyond the prior", "inconclusive"]

CHANCE = 0.5
# What "nothing beyond the prior" must exclude: a gain in decibels, and a share of decoys.
GAIN_MARGIN, SHARE_MARGIN = 1.0, 0.75
# So many images are judged by ranks as well.
_FEW = 4
# A reconstruction that differs from μ by less, per value, resembles nothing; cosines nearer to each other are tied.
_NOTHING, _TIE = 1e-6, 1e-12


@dataclass(frozen=True, eq=False)
class Identification:
    """`share` is the mean over targets with its interval; `shares` and `decoys`, (n,), are each target's share and its
    number of decoys. One target has the interval [0, 1].
    """

    share: Estimate
    shares: Floats
    decoys: tuple[int, ...]

    @property
    def above_chance(self) -> bool:
        """Whether the interval lies above ½."""
        return self.share.low > CHANCE

    def rank_test(self, target: int = 0) -> float:
        """The p-value of one target: the chance that a blind attack's image resembles a random one of target and decoys
        at least as much, (1 + decoys it resembles as much) / (1 + decoys), ties counting ½.
        """
        decoys = self.decoys[target]
        return (1 + decoys * (1 - float(self.shares[target]))) / (1 + decoys)

    def rank_tests(self) -> float:
        """The p-value of all targets together: Fisher's combination of their own, as if they shared no decoys."""
        if len(self.shares) == 1:
            return self.rank_test()
        # Takes a second to import.
        from scipy.stats import combine_pvalues

        found = combine_pvalues([self.rank_test(i) for i in range(len(self.shares))], method="fisher")
        return float(found.pvalue)

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "share": {"value": self.share.value, "low": self.share.low, "high": self.share.high},
            "chance": CHANCE,
            "above_chance": self.above_chance,
            "shares": self.shares.tolist(),
            "decoys": list(self.decoys),
        }


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


@dataclass(frozen=True, eq=False)
class Assessment:
    """Scores of the attack and of blind attacks on the same images, and what the comparison says. `images` are the
    reconstructions in the order of the truth.
    """

    images: Tensor
    scores: ImageScores
    blind: Mapping[str, ImageScores]
    beyond: BeyondPrior
    identification: Identification | None

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the images."""
        return {
            "scores": self.scores.as_json(),
            "blind": {name: scores.as_json() for name, scores in self.blind.items()},
            "beyond": self.beyond.as_json(),
        }


def assess(
    images: Tensor,
    truth: Tensor,
    *,
    blind: Mapping[str, BlindGuess] | None = None,
    labels: Tensor | None = None,
    found_labels: Tensor | None = None,
    decoys: tuple[Tensor, Tensor] | None = None,
    model: nn.Module | None = None,
    pixels: Pixels | None = None,
    lpips: Lpips | None = None,
) -> Assessment:
    """Compare images (n, count, channels, height, width) with the truth of the same shape.

    Images found for examples that were forgotten together have no order: they are matched to the truth one to one, by
    `found_labels` and `labels`, both (n, count), and within a label for the least error. `decoys`, images and labels
    drawn as the targets were, are for identification, which is left out where labels do not decide the order: images
    matched to what they fit best resemble it by that alone. `blind` has guesses for the n·count images in their order.
    """
    if images.shape != truth.shape:
        raise InputError(f"images have shape {tuple(images.shape)} and the truth {tuple(truth.shape)}; give as many")
    true, one_each = truth.flatten(0, 1), images.shape[1] == 1
    if labels is None and not one_each:
        raise InputError("images forgotten together are told apart by their labels; give labels, and those found")
    found = images.flatten(0, 1) if labels is None else in_order(images, found_labels, truth, labels)
    ordered = one_each or (labels is not None and found_labels is not None and ordered_by_labels(found_labels, labels))
    scores = score_images(found, true, model=model, pixels=pixels, lpips=lpips)
    others = {
        name: score_images(guess.images.to(true), true, model=model, pixels=pixels, lpips=lpips)
        for name, guess in (blind or {}).items()
    }
    named = None
    if decoys is not None and labels is not None and ordered:
        named = identification(found, true, labels.flatten(), decoys=decoys[0], decoy_labels=decoys[1])
    return Assessment(found, scores, others, beyond_prior(scores, others, identification=named), named)


def ordered_by_labels(found_labels: Tensor, labels: Tensor) -> bool:
    """Whether labels (n, count) alone say which image found belongs to which true one: there is one to a group, or the
    same labels in both, each once.
    """
    pairs = list(zip(found_labels.tolist(), labels.tolist(), strict=True))
    return all(len(true) == 1 or (sorted(found) == sorted(true) and len({*true}) == len(true)) for found, true in pairs)


def in_order(images: Tensor, found_labels: Tensor | None, truth: Tensor, labels: Tensor) -> Tensor:
    """Images (n, count, ...) as (n·count, ...) in the order of the truth: matched one to one within each group, by
    label first, then for the least squared error. Without `found_labels` by the error alone.

    Labels come first because matching each image to the one it fits best flatters an attack that saw nothing.
    """
    rows = []
    for i, (some, theirs) in enumerate(zip(images, truth, strict=True)):
        apart = (some[:, None] - theirs[None]).double().square().flatten(2).mean(2).cpu().numpy()
        if found_labels is not None:
            # An error is at most 1, so that no errors outweigh a label.
            apart += (len(some) + 1) * (found_labels[i][:, None] != labels[i][None]).cpu().numpy()
        row, column = linear_sum_assignment(apart)
        rows.append(some[torch.as_tensor(row[column.argsort()], device=some.device)])
    return torch.cat(rows)


def identification(
    found: Tensor, truth: Tensor, labels: Tensor, *, decoys: Tensor, decoy_labels: Tensor, level: float = 0.95
) -> Identification:
    """The shares of the images found, each against the decoys with its target's label, (n,).

    The interval is Student's, cut to [0, 1], and counts both targets and decoys as draws, since targets of one class
    are compared with the same decoys: the variance of the mean is that of the shares over targets, plus for each class
    that of its decoys' mean outcomes, with the degrees of freedom of Satterthwaite, n − 1 at most. A few shares may be
    alike by chance (all 1, for one), so the first is at least what ranks of that mean A usually have, 2A²/(1 + A) − A²
    or A/(2 − A) − A², which is 1/12 at ½. Give as many decoys as targets a class, or more: where a hundred targets
    shared ten decoys, or ten shared two, blind attacks came out above chance in 4 and 6 % of simulations at level 0.95,
    instead of 2.5 %.
    """
    check_level(level)
    one, other = checked_images(found, truth)
    check_images(decoys, what="the decoys")
    if decoys.shape[1:] != other.shape[1:]:
        raise InputError(f"decoys have shape {tuple(decoys.shape[1:])} and targets {tuple(other.shape[1:])}")
    if labels.shape != (len(other),) or decoy_labels.shape != (len(decoys),):
        raise InputError(
            f"{len(other)} targets and {len(decoys)} decoys have labels of shapes {tuple(labels.shape)} and "
            f"{tuple(decoy_labels.shape)}; give one label each"
        )
    pool, held = decoys.detach().to(other.device, torch.float64).clamp(0, 1), decoy_labels.to(other.device)
    outcomes: dict[int, list[Floats]] = {}
    rows: list[Floats] = []
    for image, target, label in zip(one, other, labels.tolist(), strict=True):
        rivals = pool[held == label]
        if len(rivals) < 2:
            raise InputError(f"class {label} has {len(rivals)} decoys; give at least 2 other images of the class")
        rows.append(_outcomes(image, target, rivals))
        outcomes.setdefault(label, []).append(rows[-1])
    shares = np.array([won.mean() for won in rows])
    tables = [np.stack(won) for won in outcomes.values()]
    return Identification(_interval(shares, tables, level), shares, tuple(len(won) for won in rows))


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
    sizes = {name: len(scores) for name, scores in blind.items()}
    if identification is not None:
        sizes["identification"] = len(identification.shares)
    for name, size in sizes.items():
        if size != len(found):
            raise InputError(
                f"{name!r} has scores of {size} images and the attack of {len(found)}; score the same images"
            )
    gains = {name: intervals.mean(found.psnr - scores.psnr, level=level) for name, scores in blind.items()}
    best = max(blind, key=lambda name: float(blind[name].psnr.mean()))
    by_rank = None
    if identification is not None and len(found) <= _FEW:
        by_rank = identification.rank_tests() <= (1 - level) / 2
    verdict = _verdict(gains[best], identification, images=len(found), by_rank=by_rank)
    reason = _reason(verdict, gains[best], best, identification, images=len(found), by_rank=by_rank)
    return BeyondPrior(verdict, reason, gains, best, identification, level)


def _outcomes(found: Tensor, target: Tensor, rivals: Tensor) -> Floats:
    """For each decoy 1 where the target resembles the image found more, ½ for a tie, else 0."""
    images = torch.cat([target[None], rivals]).flatten(1)
    centre = images.mean(0)
    seen, shown = found.flatten() - centre, images - centre
    if seen.square().mean().sqrt() <= _NOTHING:
        return np.full(len(rivals), CHANCE)
    lengths = shown.norm(dim=1).clamp(min=_NOTHING)
    cosines = ((shown * seen).sum(1) / (lengths * seen.norm())).cpu().numpy()
    ahead = cosines[0] - cosines[1:]
    return np.where(np.abs(ahead) <= _TIE, CHANCE, (ahead > 0).astype(np.float64))


def _interval(shares: Floats, tables: list[Floats], level: float) -> Estimate:
    n, value = len(shares), float(shares.mean())
    if n == 1:
        return Estimate(value, 0.0, 1.0)
    fewest = min(t.shape[1] for t in tables)
    parts = [(max(float(shares.var(ddof=1)), _usual_variance(value, fewest)) / n, n - 1)]
    for table in tables:
        decoys = table.shape[1]
        parts.append(((len(table) / n) ** 2 * float(table.mean(0).var(ddof=1)) / decoys, decoys - 1))
    total = sum(part for part, _ in parts)
    freedom = min(total**2 / sum(part**2 / own for part, own in parts), n - 1.0)
    reach = Spread(total, freedom).reach(level)
    return Estimate(value, max(value - reach, 0.0), min(value + reach, 1.0))


def _usual_variance(share: float, decoys: int) -> float:
    """The variance of a target's rank where resemblances to targets and to decoys are exponential, the larger of both
    ways.
    """
    # Ranks among m decoys do not tell a share of 1 from one of 1 − 1/(2m + 2).
    edge = 0.5 / (decoys + 1)
    a = min(max(share, edge), 1 - edge)
    return max(a / (2 - a), 2 * a**2 / (1 + a)) - a**2


def _verdict(gain: Estimate, named: Identification | None, *, images: int, by_rank: bool | None) -> Verdict:
    if by_rank:
        return "beyond the prior"
    if images == 1:
        return "inconclusive"
    if gain.low > 0 or (named is not None and named.above_chance):
        return "beyond the prior"
    excluded = gain.high < GAIN_MARGIN and (named is None or named.share.high < SHARE_MARGIN)
    return "nothing beyond the prior" if excluded else "inconclusive"


def _reason(
    verdict: Verdict, gain: Estimate, best: str, named: Identification | None, *, images: int, by_rank: bool | None
) -> str:
    decibels = f"{abs(gain.value):.2f} dB {'above' if gain.value >= 0 else 'below'} the {best}'s"
    if images == 1:
        rank = ""
        if named is not None:
            rank = f"; it resembles its target more than {named.shares[0]:.3f} of {named.decoys[0]} decoys"
            rank += f", rank test p = {named.rank_test():.2g}"
        return f"one image has no interval; its PSNR is {decibels}{rank}"
    parts = {f"mean PSNR {decibels} [{gain.low:+.2f}, {gain.high:+.2f}]": gain.low > 0}
    if named is not None:
        parts[f"nearer to the target than {named.share} of the decoys, chance being {CHANCE}"] = named.above_chance
        if by_rank is not None:
            parts[f"rank tests of {images} images, p = {named.rank_tests():.2g}"] = by_rank
    if verdict == "beyond the prior":
        shown = " and ".join(text for text, holds in parts.items() if holds)
        missing = " and ".join(text for text, holds in parts.items() if not holds)
        return f"shown by {shown}" + (f"; not shown by: {missing}" if missing else "")
    if verdict == "inconclusive":
        return f"{'; '.join(parts)}; too few images to exclude {GAIN_MARGIN:g} dB or a share of {SHARE_MARGIN:g}"
    return "; ".join(parts)
