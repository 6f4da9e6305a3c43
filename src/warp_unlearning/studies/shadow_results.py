"""What a shadow audit found, as plain data with a schema version: a row for each arm, with what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attacks.membership.audit import Audit
from ..attacks.membership.memorisation import memorisation, most_memorised
from ..attacks.membership.shadow_audit import audit_against_originals, retain_leakage, shadow_audit
from ..data.plain import plain
from ..errors import WarpError
from ..runs.store import Store
from ..stats.clusters import cell_sums, two_way
from ..stats.intervals import mean
from ..stats.paired_share import paired_reduction
from ..stats.rank_correlation import correlation_interval, rank_correlation
from ..stats.reading import strength_of
from .pair_means import mean_area, mean_rates, share_mean
from .shadow_plan import ShadowPlan
from .shadow_scores import ArmScores, OriginalScores, arm_scores, original_scores
from .shadow_settings import Arm

SCHEMA_VERSION = 1
SLICES = {"most memorised 1 %": 0.01, "most memorised 5 %": 0.05}
Shadows = NDArray[np.int64]
VERTICES, BINS, SHOWN = 500, 60, 1000
GRADIENT = "gradient difference"

THREAT = (
    "The attacker holds the unlearned models' answers for every audited example and its label, knows the data, the "
    "network, the training recipe, the unlearning method and its settings, and has trained shadow models the same way.",
    "In the pair audits the attacker also holds the weights of the original and of the unlearned model, and tries to "
    "undo a defence before attacking.",
    "The attacker does not know what a defence drew at random.",
)
NOT_TESTED = (
    "reconstruction of forgotten examples",
    "forget sets of other sizes or kinds, such as whole classes",
    "requests one after another",
    "other data, networks and training recipes than those named",
    "attackers who poison the training data or watch the training",
)


def shadow_results(plan: ShadowPlan, store: Store) -> dict[str, Any]:
    """The arms of the results; what the run itself knows (stages, failures, versions) is added by its caller."""
    found = [arm_scores(plan, store, i) for i in range(len(plan.settings.arms))]
    arms = arm_rows(plan.settings.arms, found, original_scores(plan, store))
    forget_size = int(np.mean([(row == 0).sum() for row in plan.design.part]))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "shadow",
        "audited": {
            "shadows": plan.settings.shadows,
            "forget_sets": plan.settings.forget_sets,
            "points": plan.design.trained.shape[1],
            "forgotten_share": plan.settings.share,
            "forget_set_size": forget_size,
            "training_examples": int(plan.design.trained[0].sum()),
            "seed": plan.settings.seed,
        },
        "threat": list(THREAT),
        "not_tested": list(NOT_TESTED),
        "arms": plain(arms),
    }


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
        "gradient_test": _gradient_test(scores, base),
        "strongest": _strongest(scores),
    }
    if audit is None:
        return about | {"problem": problem, **dict.fromkeys(_SCORES)}
    return about | {
        "problem": None,
        "all": audit.summary(),
        "slices": _slices(scores, audit, originals),
        "against_originals": _against_originals(scores, originals),
        "retain_leakage": _retain(scores, originals),
        "reduction": None if base is None else _reduction(scores, base),
        "roc": _curve(audit),
        "histogram": _histogram(audit),
        "risk": _risk(audit, scores),
    }


_SCORES = ("all", "slices", "against_originals", "retain_leakage", "reduction", "roc", "histogram", "risk")


def _audit(scores: ArmScores, shadows: Shadows | None) -> Audit:
    rows = slice(None) if shadows is None else np.isin(scores.groups, shadows)
    return shadow_audit(
        scores.confidence[rows],
        forgotten=scores.forgotten[rows],
        never=scores.never[rows],
        groups=scores.groups[rows],
    )


def tried_audit(scores: ArmScores, shadows: Shadows | None = None) -> tuple[Audit | None, str]:
    """The audit of an arm, or of its models of some shadows, or why there is none."""
    return _tried(partial(_audit, scores, shadows))


def paired_audits(first: ArmScores, second: ArmScores) -> tuple[Audit, Audit] | None:
    """Audits of two arms over the shadows that both have, which can be compared shadow by shadow; None where one of
    them cannot be made. While a study is under way one arm may have begun a shadow that another has not.
    """
    shadows = np.intersect1d(first.groups, second.groups)
    ours, theirs = (tried_audit(scores, shadows)[0] for scores in (first, second))
    return None if ours is None or theirs is None else (ours, theirs)


def _tried(make: Callable[[], Audit]) -> tuple[Audit | None, str]:
    """What `make` gives, or why it gives nothing: too few models were made, say."""
    try:
        return make(), ""
    except WarpError as error:
        return None, str(error)


def _slices(scores: ArmScores, audit: Audit, originals: OriginalScores) -> dict[str, Any]:
    """Audits of the points that other shadows memorise most, over the shadows whose originals were scored."""
    found: dict[str, Any] = dict.fromkeys(SLICES)
    shadows = np.intersect1d(audit.shadows, originals.shadows)
    ranked_audit = audit if np.array_equal(audit.shadows, shadows) else tried_audit(scores, shadows)[0]
    if ranked_audit is None:
        return found
    rows = np.searchsorted(originals.shadows, shadows)
    ranked = memorisation(originals.confidence, trained=originals.trained)[rows]
    for name, share in SLICES.items():
        mask = most_memorised(ranked, share)
        part, _ = _tried(partial(ranked_audit.restricted, mask))
        found[name] = None if part is None else part.summary()
    return found


def _against_originals(scores: ArmScores, originals: OriginalScores) -> dict[str, Any] | None:
    audit, _ = _tried(
        lambda: audit_against_originals(
            scores.confidence,
            forgotten=scores.forgotten,
            groups=scores.groups,
            original_scores=originals.confidence,
            original_never=~originals.trained,
            original_groups=originals.shadows,
        )
    )
    return None if audit is None else audit.summary()


def _retain(scores: ArmScores, originals: OriginalScores) -> dict[str, Any] | None:
    """Over the shadows that have both unlearned models and a scored original."""
    ours, theirs = np.isin(scores.groups, originals.shadows), np.isin(originals.shadows, scores.groups)
    try:
        found = retain_leakage(
            scores.confidence[ours],
            retained=scores.kept[ours],
            never=scores.never[ours],
            groups=scores.groups[ours],
            original_scores=originals.confidence[theirs],
            original_trained=originals.trained[theirs],
            original_groups=originals.shadows[theirs],
        )
    except WarpError:
        return None
    return {
        "before": asdict(found.before.interval()),
        "after": asdict(found.after.interval()),
        "difference": asdict(found.change.difference),
    }


def _reduction(scores: ArmScores, base: ArmScores) -> dict[str, Any] | None:
    """What a defence changes, over the shadows that the arm and its base both have."""
    audits = paired_audits(base, scores)
    if audits is None:
        return None
    before, after = audits
    area = before.compare(after)
    resolved = before.resolvable(0.01) and after.resolvable(0.01)
    rate = before.compare(after, fpr=0.01) if resolved else None
    privacy = before.privacy_gain(after)
    return {
        "shadows": len(before.shadows),
        "auc": None if area.reduction is None else asdict(area.reduction),
        "tpr_at_1": None if rate is None or rate.reduction is None else asdict(rate.reduction),
        "privacy": None if privacy is None else asdict(privacy),
        "difference": asdict(area.difference),
        "note": area.note,
    }


def _curve(audit: Audit) -> dict[str, list[float]]:
    """Vertices of the curve, half of them spread evenly over the logarithm of the false-positive rate."""
    curve = audit.roc()
    if len(curve.fpr) <= VERTICES:
        return {"fpr": curve.fpr.tolist(), "tpr": curve.tpr.tolist()}
    smallest = max(1 / curve.negatives, 1e-6)
    wanted = np.unique(np.concatenate([np.linspace(0, 1, VERTICES // 2), np.geomspace(smallest, 1, VERTICES // 2)]))
    # The last vertex whose rate does not exceed what is wanted, so that nothing is interpolated.
    chosen = np.unique(np.searchsorted(curve.fpr, wanted, side="right") - 1)
    return {"fpr": curve.fpr[chosen].tolist(), "tpr": curve.tpr[chosen].tolist()}


def _histogram(audit: Audit) -> dict[str, list[float]]:
    both = np.concatenate([audit.positive.scores, audit.negative.scores])
    low, high = np.quantile(both, [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    parts = {
        name: np.histogram(np.clip(scores, edges[0], edges[-1]), bins=edges, density=True)[0].tolist()
        for name, scores in (("forgotten", audit.positive.scores), ("never", audit.negative.scores))
    }
    return {"edges": edges.tolist(), **parts}


def _risk(audit: Audit, scores: ArmScores) -> dict[str, Any]:
    """Gradient norms of forgotten points beside their scores, at most so many of them, evenly spread; and the rank
    correlation of all.
    """
    models, points = np.nonzero(scores.forgotten)
    found = {(int(scores.groups[m]), int(p)): float(e) for m, p, e in zip(models, points, scores.energy, strict=True)}
    positive = audit.positive
    shadows = audit.shadows[positive.shadows]
    norms = np.sqrt([found[int(s), int(p)] for s, p in zip(shadows, positive.points, strict=True)])
    known = np.flatnonzero(np.isfinite(norms))
    shown = known[:: max(1, -(-len(known) // SHOWN))]
    return {
        "gradient_norm": norms[shown].tolist(),
        "score": positive.scores[shown].tolist(),
        "correlation": risk_correlation(audit, norms),
    }


def risk_correlation(audit: Audit, norms: NDArray[np.float64]) -> dict[str, float] | None:
    """Spearman's correlation of the norms of forgotten points, one a positive of the audit, with their scores, with an
    interval over shadows and points; those that are not finite are left out. None where there is nothing to correlate.
    """
    known, positive = np.isfinite(norms), audit.positive
    found = rank_correlation(norms[known], positive.scores[known])
    if found is None or len(audit.shadows) < 2:
        return None
    shape = (len(audit.shadows), audit.points)
    table = cell_sums(found.influence, positive.shadows[known], positive.points[known], shape)
    return asdict(correlation_interval(found.value, two_way([table], refit=audit.refit).spread([1.0])))


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


def _row(pair: Mapping[str, Any], name: str) -> float | None:
    return next((float(row["auc"]["value"]) for row in pair["rows"] if row["name"] == name), None)


def _gradient_test(scores: ArmScores, base: ArmScores | None) -> dict[str, Any] | None:
    """The gradient-difference test over the pairs (`pair_means`), how much lower its area is than the base's, and the
    share of the base's advantage that is gone.
    """
    rows = [row for pair in scores.pairs for row in pair["rows"] if row["name"] == GRADIENT]
    if not rows:
        return None
    return {
        "auc": mean_area(rows),
        "pairs": len(rows),
        "rates": mean_rates(rows),
        "difference": None if base is None else gradient_difference(scores, base),
        "reduction": None if base is None else gradient_reduction(scores, base),
    }


def gradient_difference(scores: ArmScores, base: ArmScores) -> dict[str, float] | None:
    """How much lower the gradient-difference test's mean area is than the base's, with Student's interval over the
    pairs of models that both have; None below two of them. An area whose mean is below ½ is turned around.
    """
    before, after = _turned_areas(scores, base)
    return asdict(mean(before - after)) if len(before) > 1 else None


def gradient_reduction(scores: ArmScores, base: ArmScores) -> dict[str, float] | None:
    """The share of the gradient-difference test's mean advantage over guessing that is gone, paired over the pairs of
    models that both have; an area whose mean is below ½ is turned around. None below two of them, and where the base's
    advantage is not distinguishable from 0.
    """
    found = paired_reduction(*_turned_areas(scores, base))
    return None if found is None else asdict(found)


def _turned_areas(scores: ArmScores, base: ArmScores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The areas of the base and of the arm on the same pairs, each arm's turned around where its mean is below ½."""
    ours, theirs = (_areas(arm, GRADIENT) for arm in (scores, base))
    order = sorted(set(ours) & set(theirs))
    both = [np.array([areas[pair] for pair in order], dtype=np.float64) for areas in (theirs, ours)]
    before, after = (areas if not order or areas.mean() >= 0.5 else 1 - areas for areas in both)
    return before, after


def _areas(scores: ArmScores, name: str) -> dict[tuple[int, int], float]:
    """The area of an attack on every pair, by shadow and forget set."""
    found = {pair: _row(rows, name) for pair, rows in zip(scores.paired, scores.pairs, strict=True)}
    return {pair: area for pair, area in found.items() if area is not None}


def _strongest(scores: ArmScores) -> dict[str, Any] | None:
    """The attack whose mean AUC over the pairs is furthest from ½, with an interval that holds for all attacks at once:
    of one pair the audit's own, of several Student's over pairs.
    """
    if not scores.pairs:
        return None
    if len(scores.pairs) == 1:
        (pair,) = scores.pairs
        return {
            "attack": pair["strongest"],
            "strength": pair["strongest_strength"],
            "pairs": 1,
            "verdict": pair["verdict"],
        }
    names = [row["name"] for row in scores.pairs[0]["rows"]]
    areas = {name: [v for v in (_row(pair, name) for pair in scores.pairs) if v is not None] for name in names}
    found = {name: strength_of(share_mean(values, level=1 - 0.05 / len(areas))) for name, values in areas.items()}
    best = max(found, key=lambda name: found[name].value)
    verdict = "leak" if found[best].low > 0.5 else "inconclusive"
    return {"attack": best, "strength": asdict(found[best]), "pairs": len(scores.pairs), "verdict": verdict}
