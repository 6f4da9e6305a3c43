"""Tests of forgotten against unseen rows, whose labels may be exchanged within a class if nothing is known of them; of
one model before and after on the same rows; of a score beside those of the null; and of several at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb, prod

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ..errors import InputError
from .area import LEVEL, Matched
from .intervals import Estimate, normal_beyond
from .roc import Floats, finite

DRAWS = 4999
# More permutations of more rows than this take longer than a few seconds, so fewer are drawn, but never below 999.
_WORK = 10**8
_BLOCK = 10**6
# Right on so much more of the rows than before, beyond the rise on unseen rows, is more than chance of the training.
RISE = 0.03


def permutation_p(
    scores: ArrayLike, rows: Matched, *, generator: np.random.Generator, draws: int = DRAWS
) -> tuple[Floats, Floats]:
    """Two-sided p-values of k attacks (k, n) on "forgotten and unseen rows of a class have the same scores": of each
    alone, and adjusted for all by the smallest p-value of each permutation (Westfall and Young's min-P), so that
    attacks with few distinct scores cost the others nothing.

    Exact where there are at most `draws` ways to choose the forgotten rows; else drawn, and then valid at any size.
    """
    ranks, _ = centred_ranks(scores, rows)
    ways = prod(comb(int(f + t), int(f)) for f, t in rows.counts)
    count, found = min(draws, max(999, _WORK // rows.forgot.size)), ranks @ rows.forgot
    chance = np.zeros((len(ranks), 1))
    for at, (f, t) in zip(rows.positions, rows.counts, strict=True):
        if ways <= draws:
            sums = ranks[:, at][:, list(combinations(range(len(at)), int(f)))].sum(2)
            chance = (chance[:, :, None] + sums[:, None, :]).reshape(len(ranks), -1)
        else:
            chance = chance + _drawn_sums(ranks[:, at], int(f), int(t), count, generator)
    if ways > draws:
        chance = np.column_stack([found, chance])
    gaps = np.abs(chance)
    ordered = np.sort(gaps, axis=1)

    def p_values(of: Floats) -> Floats:
        below = [np.searchsorted(line, gap - 1e-12) for line, gap in zip(ordered, of, strict=True)]
        return np.asarray(1 - np.array(below) / gaps.shape[1], dtype=np.float64)

    alone, smallest = p_values(np.abs(found)[:, None])[:, 0], p_values(gaps).min(0)
    return alone, (smallest <= alone[:, None] + 1e-12).mean(1)


def _drawn_sums(ranks: Floats, f: int, t: int, count: int, generator: np.random.Generator) -> Floats:
    """Sums of the ranks (k, f + t) over f rows drawn `count` times without replacement."""
    fewer, sign = min(f, t), 1 if f <= t else -1
    sums, block = [], max(_BLOCK // (f + t), 1)
    for start in range(0, count, block):
        keys = generator.random((min(block, count - start), f + t), dtype=np.float32)
        mask = np.zeros(keys.shape)
        np.put_along_axis(mask, np.argpartition(keys, fewer - 1, axis=1)[:, :fewer], 1.0, axis=1)
        sums.append(sign * ranks @ mask.T)
    return np.concatenate(sums, axis=1)


def centred_ranks(scores: ArrayLike, rows: Matched) -> tuple[Floats, Floats]:
    """Ranks within classes of k scores (k, n), centred and scaled so that they sum to A − ½ over forgotten rows, and
    the standard deviation of that sum when labels are exchanged; 1 where all scores of each class are equal.
    """
    given = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    ranks, variance = np.zeros(given.shape), np.zeros(len(given))
    total = rows.counts[:, 0].sum()
    for at, (f, t) in zip(rows.positions, rows.counts, strict=True):
        for i, line in enumerate(given[:, at]):
            ordered = np.sort(line)
            middle = (np.searchsorted(ordered, line, "left") + np.searchsorted(ordered, line, "right")) / 2
            ranks[i, at] = (middle - len(at) / 2) / (total * t)
        variance += f * t / (len(at) * (len(at) - 1)) * np.square(ranks[:, at]).sum(1)
    return ranks, np.where(variance > 0, np.sqrt(variance), 1.0)


def rank_p(values: ArrayLike, rows: Matched) -> float:
    """One-sided p-value of "no higher on forgotten rows": Wilcoxon's rank sum by class, normal limit with ties."""
    ranks, size = centred_ranks(values, rows)
    return float(special.ndtr(-(ranks[0] @ rows.forgot) / size[0])) if ranks.any() else 1.0


def sign_p(up: int, down: int) -> float:
    """P(at least `up` of `up + down` changes go up) where either way is as likely.

    >>> sign_p(7, 0)
    0.0078125
    """
    return float(special.betainc(up, down + 1, 0.5)) if up else 1.0


@dataclass(frozen=True)
class Rise:
    """Accuracy on the forgotten rows before and after, and after on unseen rows of their classes."""

    before: float
    after: float
    unseen: float


def learned_more(before: NDArray[np.bool_], after: NDArray[np.bool_], rows: Matched) -> Rise | None:
    """The rise of right answers (n,) on the forgotten rows, if it is beyond chance, more than 3 points larger than on
    unseen rows, and ends above theirs; else None.
    """
    old, now = before.astype(np.float64), after.astype(np.float64)
    change, mine = now - old, rows.forgot
    up, down = int((change[mine] > 0).sum()), int((change[mine] < 0).sum())
    p = max(sign_p(up, down), rank_p(change, rows))
    beyond = change[mine].mean() - rows.unseen_mean(change)
    rise = Rise(float(old[mine].mean()), float(now[mine].mean()), rows.unseen_mean(now))
    return rise if p < 1 - LEVEL and beyond > RISE and rise.after > rise.unseen else None


def paired_drop(up: int, down: int, n: int) -> Estimate:
    """The drop of accuracy where `up` of n answers turned right and `down` wrong, with Bonett and Price's interval."""
    right, wrong = (up + 1) / (n + 2), (down + 1) / (n + 2)
    reach = normal_beyond((1 - LEVEL) / 2) * float(np.sqrt((right + wrong - (wrong - right) ** 2) / (n + 2)))
    return Estimate((down - up) / n, wrong - right - reach, wrong - right + reach)


def holm(p_values: ArrayLike) -> Floats:
    """p-values corrected so that rejecting those below α errs at all in at most α of cases, however the tests depend.

    The i-th smallest of m is multiplied by m − i + 1; none is smaller than one before it, none exceeds 1.

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    given = np.asarray(p_values, dtype=np.float64).ravel()
    if given.size == 0 or not np.all((given >= 0) & (given <= 1)):
        raise InputError(f"the p-values are {given.tolist()}; give at least one, each between 0 and 1")
    order = np.argsort(given, kind="stable")
    found = np.empty_like(given)
    found[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1)), 1.0)
    return found


def conformal_p(scores: ArrayLike, calibration: ArrayLike) -> Floats:
    """The p-value of each score (n,) against m calibration scores of the null, (1 + those at least as large)/(m + 1):
    valid for any score that is exchangeable with them. Large scores are evidence, and ties count against it. The
    p-values share the calibration scores, and so depend on each other.

    >>> conformal_p([0.0, 2.0, 9.0], [1.0, 2.0, 3.0]).tolist()
    [1.0, 0.75, 0.25]
    """
    found, null = finite(scores, "score"), np.sort(finite(calibration, "calibration score"))
    if found.ndim != 1 or null.ndim != 1:
        raise InputError(f"scores of shapes {found.shape} and {null.shape}; give one number for each example")
    return np.asarray((1 + null.size - np.searchsorted(null, found, side="left")) / (null.size + 1), dtype=np.float64)
