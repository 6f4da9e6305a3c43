"""A row of results for each arm, of a shadow audit or of a study, from the scores of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attacks.membership.audit import Audit
from ..attacks.membership.shadow_audit import RetainLeakage
from ..stats.intervals import mean
from .arm_audits import (
    against_originals,
    arm_verdict,
    memorised_slices,
    reduction,
    retained_change,
    slice_reductions,
    tried_audit,
)
from .arm_pairs import gradient_test, strongest_attack
from .audit_shapes import curve_of, histogram_of, risk_of
from .shadow_scores import ArmScores, OriginalScores
from .shadow_settings import Arm


def arm_rows(arms: Sequence[Arm], found: Sequence[ArmScores], originals: OriginalScores) -> list[dict[str, Any]]:
    """A row for every arm from the scores of its models, in the same order."""
    audits = [tried_audit(scores) for scores in found]
    rows = []
    for i, arm in enumerate(arms):
        of = base_of(arms, i)
        base = None if of is None else found[of]
        rows.append(_arm(arm, found[i], audits[i], originals, base))
    return rows


def base_of(arms: Sequence[Arm], index: int) -> int | None:
    """The arm that a defended one is compared with: the method alone, at the same value of what is swept, or with the
    same settings, or the only one there is. None for a method alone, and where several could be meant.
    """
    arm = arms[index]
    alone = [i for i, other in enumerate(arms) if other.method == arm.method and other.defense is None]
    if arm.defense is None:
        return None
    swept = [i for i in alone if (value := _swept(arms[i])) and value == _swept(arm)]
    alike = [i for i in alone if arms[i].method_settings == arm.method_settings]
    chosen = swept or alike or alone
    return chosen[0] if len(chosen) == 1 else None


def _swept(arm: Arm) -> dict[str, float]:
    return dict(getattr(arm, "swept", {}))


def _arm(
    arm: Arm,
    scores: ArmScores,
    audited: tuple[Audit | None, str],
    originals: OriginalScores,
    base: ArmScores | None,
) -> dict[str, Any]:
    """`base` has the scores of the same method without a defence, None for that arm itself."""
    audit, problem = audited
    about: dict[str, Any] = {
        "name": arm.name,
        "method": arm.method,
        "defense": arm.defense,
        "settings": asdict(arm),
        "complete": scores.missing == 0,
        "missing": scores.missing,
        "accuracy": {what: _mean(values) for what, values in scores.accuracy.items()},
        "seconds": {
            "unlearning": _mean(scores.seconds),
            "defense_share": _extra(scores.seconds, base.seconds) if base is not None else None,
        },
        "gradient_test": gradient_test(scores, base),
        "strongest": strongest_attack(scores),
    }
    if audit is None:
        return about | {"problem": problem, **dict.fromkeys(_SCORES)}
    slices, kept = memorised_slices(scores, audit, originals), retained_change(scores, originals)
    audits = {ULIRA: audit} | {name: part for name, part in slices.items() if part is not None}
    return about | {
        "problem": None,
        "verdict": arm_verdict(scores, audits, None if kept is None else kept.before, originals).as_json(),
        "all": audit.summary(),
        "slices": {name: None if part is None else part.summary() for name, part in slices.items()},
        "against_originals": against_originals(scores, originals),
        "retain_leakage": None if kept is None else _kept(kept),
        "reduction": None if base is None else reduction(scores, base),
        "slice_reductions": None if base is None else slice_reductions(scores, base, originals),
        "roc": curve_of(audit),
        "histogram": histogram_of(audit),
        "risk": risk_of(audit, scores),
    }


ULIRA = "U-LiRA"
_SCORES = (
    "verdict",
    "all",
    "slices",
    "against_originals",
    "retain_leakage",
    "reduction",
    "slice_reductions",
    "roc",
    "histogram",
    "risk",
)


def _kept(found: RetainLeakage) -> dict[str, Any]:
    return {
        "before": asdict(found.before.interval()),
        "after": asdict(found.after.interval()),
        "difference": asdict(found.change.difference),
    }


def _mean(values: NDArray[np.float64]) -> dict[str, float] | None:
    return asdict(mean(values)) if len(values) else None


def _extra(seconds: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, float] | None:
    """The mean over the base's mean, less 1, with a 95 % interval by the delta method; None below two of either."""
    if min(len(seconds), len(base)) < 2 or not base.mean() > 0 or not seconds.mean() > 0:
        return None
    ratio = float(seconds.mean() / base.mean())
    spreads = [float(np.var(s, ddof=1) / len(s) / s.mean() ** 2) for s in (seconds, base)]
    reach = 1.96 * ratio * float(np.sqrt(sum(spreads)))
    return {"value": ratio - 1, "low": ratio - 1 - reach, "high": ratio - 1 + reach}
