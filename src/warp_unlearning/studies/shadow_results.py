"""What a shadow audit found, as plain data with a schema version: a row for each arm, with what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from ..stats.intervals import mean
from ..stats.reading import strength_of
from .shadow_plan import ShadowPlan
from .shadow_scores import ArmScores, OriginalScores, arm_scores, original_scores

SCHEMA_VERSION = 1
SLICES = {"most memorised 1 %": 0.01, "most memorised 5 %": 0.05}
VERTICES, BINS, SHOWN = 500, 60, 1000

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
    originals = original_scores(plan, store)
    found = [arm_scores(plan, store, i) for i in range(len(plan.settings.arms))]
    audits = [_tried(partial(_audit, scores)) for scores in found]
    bases = {arm.method: (audits[i][0], found[i]) for i, arm in enumerate(plan.settings.arms) if arm.defense is None}
    arms = [
        _arm(plan, i, found[i], audits[i], originals, None if arm.defense is None else bases.get(arm.method))
        for i, arm in enumerate(plan.settings.arms)
    ]
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


def _arm(
    plan: ShadowPlan,
    index: int,
    scores: ArmScores,
    audited: tuple[Audit | None, str],
    originals: OriginalScores,
    base: tuple[Audit | None, ArmScores] | None,
) -> dict[str, Any]:
    """`base` is the arm of the same method without a defence, None for that arm itself."""
    arm = plan.settings.arms[index]
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
            "defense_share": _extra(scores.seconds, base[1].seconds) if base is not None else None,
        },
        "gradient_test": _gradient_test(scores),
        "strongest": _strongest(scores),
    }
    if audit is None:
        return about | {"problem": problem, **dict.fromkeys(_SCORES)}
    return about | {
        "problem": None,
        "all": audit.summary(),
        "slices": _slices(audit, originals),
        "against_originals": _against_originals(scores, originals),
        "retain_leakage": _retain(scores, originals),
        "reduction": None if base is None else _reduction(audit, base[0]),
        "roc": _curve(audit),
        "histogram": _histogram(audit),
        "risk": _risk(audit, scores),
    }


_SCORES = ("all", "slices", "against_originals", "retain_leakage", "reduction", "roc", "histogram", "risk")


def _audit(scores: ArmScores) -> Audit:
    return shadow_audit(scores.confidence, forgotten=scores.forgotten, never=scores.never, groups=scores.groups)


def _tried(make: Callable[[], Audit]) -> tuple[Audit | None, str]:
    """What `make` gives, or why it gives nothing: too few models were made, say."""
    try:
        return make(), ""
    except WarpError as error:
        return None, str(error)


def _slices(audit: Audit, originals: OriginalScores) -> dict[str, Any]:
    """Audits of the points that other shadows memorise most; only where every shadow's original was scored."""
    found: dict[str, Any] = dict.fromkeys(SLICES)
    if not np.array_equal(audit.shadows, originals.shadows):
        return found
    ranked = memorisation(originals.confidence, trained=originals.trained)
    for name, share in SLICES.items():
        mask = most_memorised(ranked, share)
        part, _ = _tried(partial(audit.restricted, mask))
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
    try:
        found = retain_leakage(
            scores.confidence,
            retained=scores.kept,
            never=scores.never,
            groups=scores.groups,
            original_scores=originals.confidence,
            original_trained=originals.trained,
            original_groups=originals.shadows,
        )
    except WarpError:
        return None
    return {
        "before": asdict(found.before.interval()),
        "after": asdict(found.after.interval()),
        "difference": asdict(found.change.difference),
    }


def _reduction(audit: Audit, base: Audit | None) -> dict[str, Any] | None:
    if base is None or not np.array_equal(base.shadows, audit.shadows):
        return None
    area = base.compare(audit)
    resolved = base.resolvable(0.01) and audit.resolvable(0.01)
    rate = base.compare(audit, fpr=0.01) if resolved else None
    return {
        "auc": None if area.reduction is None else asdict(area.reduction),
        "tpr_at_1": None if rate is None or rate.reduction is None else asdict(rate.reduction),
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


def _risk(audit: Audit, scores: ArmScores) -> dict[str, list[float]]:
    """Gradient norms of forgotten points beside their scores, at most so many of them, evenly spread."""
    models, points = np.nonzero(scores.forgotten)
    norms = {(int(scores.groups[m]), int(p)): float(e) for m, p, e in zip(models, points, scores.energy, strict=True)}
    shadows = audit.shadows[audit.positive.shadows]
    pairs = [
        (norms[int(s), int(p)], float(score))
        for s, p, score in zip(shadows, audit.positive.points, audit.positive.scores, strict=True)
        if np.isfinite(norms[int(s), int(p)])
    ]
    step = max(1, -(-len(pairs) // SHOWN))
    shown = pairs[::step]
    return {"gradient_norm": [float(np.sqrt(e)) for e, _ in shown], "score": [score for _, score in shown]}


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


def _gradient_test(scores: ArmScores) -> dict[str, Any] | None:
    """The gradient-difference test over the pairs, with the rates of one where there is one."""
    rows = [row for pair in scores.pairs for row in pair["rows"] if row["name"] == "gradient difference"]
    if not rows:
        return None
    if len(rows) == 1:
        return {"auc": rows[0]["auc"], "pairs": 1, "rates": rows[0]["rates"]}
    return {"auc": asdict(mean([float(row["auc"]["value"]) for row in rows])), "pairs": len(rows), "rates": None}


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
    found = {name: strength_of(mean(values, level=1 - 0.05 / len(areas))) for name, values in areas.items()}
    best = max(found, key=lambda name: found[name].value)
    verdict = "leak" if found[best].low > 0.5 else "inconclusive"
    return {"attack": best, "strength": asdict(found[best]), "pairs": len(scores.pairs), "verdict": verdict}
