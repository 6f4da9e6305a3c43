"""Do reconstructions show more than an attacker knew before: better than blind attacks, or nearer to their own target?

Two things count. The *gain* is the mean over images of PSNR(found) − PSNR(blind), paired, against the blind attack that
has the higher mean PSNR (choosing the better one can only make the gain smaller). The *share* of a target t with
reconstruction f is that of decoys, other images of its class, which f resembles less than t, ties counting ½. An attack
that saw nothing has ½ on average, however good its images are: t and the decoys are then exchangeable, as long as the
decoys are drawn as the targets were (loss and all) and neither was among the attacker's own images.

Resemblance is the cosine of f − μ and d − μ, with μ the mean of the decoys and the target (of the target too, so that
it stays exchangeable with them). Not MSE: to a faint reconstruction the nearest images in MSE are those of low
contrast; SSIM, too, compares contrasts. The cosine takes from both images what the class has in common, so that a
blurry mean resembles nothing (μ itself ties with all, ½), and it ignores the contrast, which gradients often do not
show. It is signed: a negative of the target has a share near 0.

Three tests ask for one side each: Student's for the gain, Student's for the share, and for up to four images, whose
intervals are wide, the ranks of the targets among their decoys. One image has ranks alone. The claim *beyond prior* is
about all attacks on a model, and Holm's correction over all their tests:

- *does not hold*: a test shows more than the prior, p < .05 after correction;
- *holds*: no test does, and every interval excludes a gain of 1 dB and a share of ¾;
- *cannot be said*: neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import chdtrc
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import InputError
from ...stats import intervals
from ...stats.area import LEVEL
from ...stats.exchange import holm
from ...stats.intervals import Estimate, Spread, student_tail
from ...stats.roc import Floats
from ...stats.verdict import Claim, p_value, share
from .blind import BlindGuess
from .metrics import ImageScores, Lpips, check_images, checked_images, plain_estimate, score_images

CHANCE = 0.5
# What "holds" must exclude: a gain in decibels, and a share of decoys.
GAIN_MARGIN, SHARE_MARGIN = 1.0, 0.75
# So many images are judged by ranks as well.
_FEW = 4
# A reconstruction that differs from μ by less, per value, resembles nothing; cosines nearer to each other are tied.
_NOTHING, _TIE = 1e-6, 1e-12


@dataclass(frozen=True, eq=False)
class Identification:
    """`share` is the mean over targets with its interval; `shares` and `decoys`, (n,), are each target's share and its
    number of decoys; `p` is that of a mean share of ½ or less. One target has the interval [0, 1] and p = 1.
    """

    share: Estimate
    shares: Floats
    decoys: tuple[int, ...]
    p: float

    def rank_p(self) -> float:
        """Fisher's combination of the targets' rank tests, as if they shared no decoys. The p of one target is the
        chance that a blind attack's image resembles a random one of target and decoys at least as much,
        (1 + decoys it resembles as much) / (1 + decoys), ties counting ½.
        """
        decoys = np.array(self.decoys)
        each = (1 + decoys * (1 - self.shares)) / (1 + decoys)
        return float(chdtrc(2 * len(each), -2 * np.log(each).sum()))


@dataclass(frozen=True, eq=False)
class BeyondPrior:
    """One attack as evidence: its paired mean gains in PSNR over each blind attack, in decibels, the name of the `best`
    of these, and the p-values of its `tests` by name.
    """

    images: int
    gains: Mapping[str, Estimate]
    best: str
    identification: Identification | None
    tests: Mapping[str, float]

    @property
    def excluded(self) -> bool:
        """Whether the intervals exclude what would be worth knowing."""
        named = self.identification
        return self.gains[self.best].high < GAIN_MARGIN and (named is None or named.share.high < SHARE_MARGIN)

    def __str__(self) -> str:
        gain, named = self.gains[self.best], self.identification
        text = f"mean PSNR {abs(gain.value):.2f} dB {'above' if gain.value >= 0 else 'below'} the {self.best}'s"
        text += "" if self.images == 1 else f" [{gain.low:+.2f}, {gain.high:+.2f}]"
        if named is None:
            return text
        share = f"{named.share.value:.3f} of {named.decoys[0]}" if self.images == 1 else f"{named.share} of the"
        return f"{text}, nearer to the target than {share} decoys"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        named = self.identification
        return {
            "best_blind": self.best,
            "psnr_gain": {name: plain_estimate(gain) for name, gain in self.gains.items()},
            "identification": named
            and {
                "share": plain_estimate(named.share),
                "shares": named.shares.tolist(),
                "decoys": list(named.decoys),
            },
            "tests": dict(self.tests),
            "text": str(self),
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

    @property
    def claim(self) -> Claim:
        """The claim by this attack alone."""
        return beyond_prior({"": self.beyond})

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the images."""
        return {
            "scores": self.scores.as_json(),
            "blind": {name: scores.as_json() for name, scores in self.blind.items()},
            "beyond": {"outcome": self.claim.outcome, **self.beyond.as_json()},
        }


def assess(
    images: Tensor,
    truth: Tensor,
    *,
    blind: Mapping[str, BlindGuess],
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
    every = {"": found} | {name: guess.images.to(true) for name, guess in blind.items()}
    others = {n: score_images(some, true, model=model, pixels=pixels, lpips=lpips) for n, some in every.items()}
    scores, named = others.pop(""), None
    if decoys is not None and labels is not None and ordered:
        named = identification(found, true, labels.flatten(), decoys=decoys[0], decoy_labels=decoys[1])
    return Assessment(found, scores, others, compare_with_prior(scores, others, identification=named))


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
    found: Tensor, truth: Tensor, labels: Tensor, *, decoys: Tensor, decoy_labels: Tensor
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
        alike = pool[held == label]
        if len(alike) < 2:
            raise InputError(f"class {label} has {len(alike)} decoys; give at least 2 other images of the class")
        rows.append(_outcomes(image, target, alike))
        outcomes.setdefault(label, []).append(rows[-1])
    shares, counts = np.array([won.mean() for won in rows]), tuple(len(won) for won in rows)
    value = float(shares.mean())
    if len(shares) == 1:
        return Identification(Estimate(value, 0.0, 1.0), shares, counts, 1.0)
    spread = _spread(shares, [np.stack(won) for won in outcomes.values()])
    reach = spread.reach(LEVEL)
    share = Estimate(value, max(value - reach, 0.0), min(value + reach, 1.0))
    return Identification(share, shares, counts, student_tail((value - CHANCE) / spread.error, spread.freedom))


def compare_with_prior(
    found: ImageScores, blind: Mapping[str, ImageScores], *, identification: Identification | None = None
) -> BeyondPrior:
    """Compare an attack with blind ones, such as "class mean" and "prior alone", on the same images in one order."""
    if not blind:
        raise InputError("no blind attack is given to compare with; give at least the class mean")
    sizes = {name: len(scores) for name, scores in blind.items()}
    if identification is not None:
        sizes["identification"] = len(identification.shares)
    count = len(found)
    for name, size in sizes.items():
        if size != count:
            raise InputError(f"{name!r} has scores of {size} images and the attack of {count}; score the same images")
    best = max(blind, key=lambda name: float(blind[name].psnr.mean()))
    tests: dict[str, float] = {}
    if count > 1:
        each = found.psnr - blind[best].psnr
        error = max(float(each.std(ddof=1)) / count**0.5, 1e-12)
        tests["gain"] = student_tail(float(each.mean()) / error, count - 1)
        tests |= {} if identification is None else {"share": identification.p}
    if identification is not None and count <= _FEW:
        tests["ranks"] = identification.rank_p()
    gains = {name: intervals.mean(found.psnr - scores.psnr, level=LEVEL) for name, scores in blind.items()}
    return BeyondPrior(count, gains, best, identification, tests)


def adjusted_p(evidence: Mapping[str, BeyondPrior]) -> dict[str, float]:
    """The least p of each attack after Holm's correction over all tests of all attacks; 1 for one without a test."""
    alone = [(name, p) for name, one in evidence.items() for p in one.tests.values()]
    found = dict.fromkeys(evidence, 1.0)
    for (name, _), p in zip(alone, holm([p for _, p in alone]) if alone else (), strict=True):
        found[name] = min(found[name], float(p))
    return found


def beyond_prior(evidence: Mapping[str, BeyondPrior], *, about: str = "") -> Claim:
    """The claim that nobody sees more of the images than without the models, by all attacks on the model `about`."""
    adjusted = adjusted_p(evidence)
    name, p = min(adjusted.items(), key=lambda item: (item[1], -evidence[item[0]].gains[evidence[item[0]].best].value))
    said = ": ".join(text for text in (about, name, str(evidence[name])) if text)
    if evidence[name].tests:
        count = sum(len(one.tests) for one in evidence.values())
        said += f"; p {share(p) if p >= 0.01 else p_value(p)}"
        said += f" after correction for {count} tests" if count > 1 else ""
    if p < 1 - LEVEL:
        return Claim("beyond prior", "does not hold", "beyond the prior", said, strongest=name)
    if evidence[name].images > 1 and all(one.excluded for one in evidence.values()):
        return Claim("beyond prior", "holds", "nothing beyond the prior", said, strongest=name)
    few = f"the intervals do not exclude {GAIN_MARGIN:g} dB and a share of {SHARE_MARGIN:g}"
    few = "one image has no interval" if evidence[name].images == 1 else few
    return Claim("beyond prior", "cannot be said", "too few images", f"{said}; {few}", strongest=name)


def _outcomes(found: Tensor, target: Tensor, decoys: Tensor) -> Floats:
    """For each decoy 1 where the image found resembles the target more than it, ½ for a tie, else 0."""
    images = torch.cat([target[None], decoys]).flatten(1)
    # Without the mean, what all images of the class share says nothing about which of them was found.
    mean = images.mean(0)
    seen, shown = found.flatten() - mean, images - mean
    if seen.square().mean().sqrt() <= _NOTHING:
        return np.full(len(decoys), CHANCE)
    lengths = shown.norm(dim=1).clamp(min=_NOTHING)
    cosines = ((shown * seen).sum(1) / (lengths * seen.norm())).cpu().numpy()
    ahead = cosines[0] - cosines[1:]
    return np.where(np.abs(ahead) <= _TIE, CHANCE, (ahead > 0).astype(np.float64))


def _spread(shares: Floats, tables: list[Floats]) -> Spread:
    """The variance of the mean share of at least two targets; `tables` has (targets, decoys) for each class."""
    n, fewest = len(shares), min(t.shape[1] for t in tables)
    usual = _usual_variance(float(shares.mean()), fewest)
    parts = [(max(float(shares.var(ddof=1)), usual) / n, n - 1)]
    for table in tables:
        decoys = table.shape[1]
        parts.append(((len(table) / n) ** 2 * float(table.mean(0).var(ddof=1)) / decoys, decoys - 1))
    total = sum(part for part, _ in parts)
    return Spread(total, min(total**2 / sum(part**2 / own for part, own in parts), n - 1.0))


def _usual_variance(share: float, decoys: int) -> float:
    """The variance of a target's rank where resemblances to targets and to decoys are exponential, the larger of both
    ways.
    """
    # Ranks among m decoys do not tell a share of 1 from one of 1 − 1/(2m + 2).
    edge = 0.5 / (decoys + 1)
    a = min(max(share, edge), 1 - edge)
    return max(a / (2 - a), 2 * a**2 / (1 + a)) - a**2
