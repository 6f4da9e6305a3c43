"""Attacks on the weights of two models, over several such pairs: means of areas and of true-positive rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import hypot
from typing import Any

from ..stats.intervals import Estimate, mean, normal_beyond

Row = Mapping[str, Any]
# The level of the intervals that audits of single pairs have in studies.
PAIR_LEVEL = 0.95


def share_mean(of: Sequence[Row | float], *, level: float = 0.95) -> Estimate:
    """The mean of areas or rates of n pairs, each with its value and interval [lₖ, uₖ] at `PAIR_LEVEL`, or a bare
    value; the interval is no narrower than what either the differences between pairs or the errors within them say.

    Aₖ = μ + bₖ + eₖ: bₖ is how this pair of models differs from others, eₖ the error of its finitely many examples. The
    spread S² of the Aₖ estimates τ² + s², the sum of both variances, so that Student's interval for the mean covers as
    it should over many studies. But of two or three pairs S may be next to 0 by chance, where τ² ≥ 0 says that the
    variance of the mean is at least s²/n. The ends are therefore

        mean − max(t S/√n, c √Σ(Aₖ − lₖ)² / n)  and  mean + max(t S/√n, c √Σ(uₖ − Aₖ)² / n),

    cut off at 0 and 1, beyond which there are no shares. t is Student's quantile with n − 1 degrees of freedom. The
    roots add the reaches of independent intervals, each side by itself, since near 0 and 1 they are not symmetric; c
    takes them from `PAIR_LEVEL` to `level` as if they were normal. As it contains Student's interval, it covers at
    least as often.

    >>> str(share_mean([0.95, 0.99]))
    '0.970 [0.716, 1.000]'
    >>> str(share_mean(2 * [{"value": 0.56, "low": 0.48, "high": 0.62}]))
    '0.560 [0.503, 0.602]'
    """
    found = mean([_value(one) for one in of], level=level)
    scale = normal_beyond((1 - level) / 2) / normal_beyond((1 - PAIR_LEVEL) / 2) / len(of)
    known = [one for one in of if isinstance(one, Mapping)]
    below = scale * hypot(*(one["value"] - one["low"] for one in known))
    above = scale * hypot(*(one["high"] - one["value"] for one in known))
    low, high = min(found.low, found.value - below), max(found.high, found.value + above)
    return Estimate(found.value, max(low, 0.0), min(high, 1.0))


def _value(one: Row | float) -> float:
    return float(one["value"] if isinstance(one, Mapping) else one)


def mean_area(rows: Sequence[Row]) -> dict[str, Any]:
    """The mean area of one attack over its rows, one a pair (`share_mean`); of a single pair its own, with the audit's
    interval.
    """
    if len(rows) == 1:
        return dict(rows[0]["auc"])
    return asdict(share_mean([row["auc"] for row in rows]))


def mean_rates(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The mean over pairs of each pair's true-positive rate at the threshold of that pair's own negatives: what an
    attacker scores who calibrates on each model. One threshold for all pairs would score another attacker, who must
    also know how the scores of one model compare with those of another.

    With TPRₖ of n pairs: Σ TPRₖ / n, and the interval of `share_mean`; where all TPRₖ are equal they say nothing of how
    pairs differ, and the interval is from the smallest to the largest end of theirs. A rate is resolved where it is in
    every pair, and `negatives` are those of the pair with the fewest: every threshold is set on one pair's negatives,
    so that more pairs resolve no smaller rate. Of a single pair its own rates.
    """
    if len(rows) == 1:
        return [dict(rate) for rate in rows[0]["rates"]]
    found = [{rate["fpr"]: rate for rate in row["rates"]} for row in rows]
    common = [fpr for fpr in found[0] if all(fpr in rates for rates in found)]
    return [_mean_rate([rates[fpr] for rates in found]) for fpr in common]


def _mean_rate(rates: Sequence[Row]) -> dict[str, Any]:
    resolved = all(rate["resolved"] for rate in rates)
    return {
        "fpr": rates[0]["fpr"],
        "resolved": resolved,
        "negatives": min(rate["negatives"] for rate in rates),
        "tpr": asdict(_mean_tpr([rate["tpr"] for rate in rates])) if resolved else None,
    }


def _mean_tpr(of: Sequence[Row]) -> Estimate:
    values = {_value(tpr) for tpr in of}
    if len(values) == 1:
        return Estimate(values.pop(), min(tpr["low"] for tpr in of), max(tpr["high"] for tpr in of))
    return share_mean(of)
