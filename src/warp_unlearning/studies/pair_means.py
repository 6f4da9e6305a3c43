"""Attacks on the weights of two models, over several such pairs: means of areas and of true-positive rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from numpy.typing import ArrayLike

from ..stats.intervals import Estimate, mean

Row = Mapping[str, Any]


def share_mean(values: ArrayLike, *, level: float = 0.95) -> Estimate:
    """The mean of areas or rates with Student's interval over them, cut off at 0 and 1, beyond which there are none.

    >>> str(share_mean([0.95, 0.99]))
    '0.970 [0.716, 1.000]'
    """
    found = mean(values, level=level)
    return Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0))


def mean_area(rows: Sequence[Row]) -> dict[str, Any]:
    """The mean area of one attack over its rows, one a pair; of a single pair its own, with the audit's interval."""
    if len(rows) == 1:
        return dict(rows[0]["auc"])
    return asdict(share_mean([float(row["auc"]["value"]) for row in rows]))


def mean_rates(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The mean over pairs of each pair's true-positive rate at the threshold of that pair's own negatives: what an
    attacker scores who calibrates on each model. One threshold for all pairs would score another attacker, who must
    also know how the scores of one model compare with those of another.

    With TPRₖ of n pairs: Σ TPRₖ / n, and Student's interval with n − 1 degrees of freedom, inside [0, 1]; where all
    TPRₖ are equal that has no width, and the interval is from the smallest to the largest end of theirs. A rate is
    resolved where it is in every pair, and `negatives` are those of the pair with the fewest: every threshold is set on
    one pair's negatives, so that more pairs resolve no smaller rate. Of a single pair its own rates.
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
    values = [float(tpr["value"]) for tpr in of]
    if len(set(values)) == 1:
        return Estimate(values[0], min(tpr["low"] for tpr in of), max(tpr["high"] for tpr in of))
    return share_mean(values)
