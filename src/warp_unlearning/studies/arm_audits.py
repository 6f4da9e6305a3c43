"""Audits of an arm by shadow models: of all its scores, of those most memorised, against originals and other arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attacks.membership.audit import Audit
from ..attacks.membership.shadow_audit import RetainLeakage, audit_against_originals, retain_leakage, shadow_audit
from ..attacks.membership.shadow_design import Mask, memorisation, most_memorised
from ..errors import WarpError
from ..stats.evidence import judge_shadows
from ..stats.intervals import mean
from ..stats.verdict import Verdict
from .shadow_scores import ArmScores, OriginalScores

SLICES = {"most memorised 1 %": 0.01, "most memorised 5 %": 0.05}
Shadows = NDArray[np.int64]


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


def memorised_slices(scores: ArmScores, audit: Audit, originals: OriginalScores) -> dict[str, Audit | None]:
    """Audits of the points that other shadows memorise most, over the shadows whose originals were scored."""
    shadows = np.intersect1d(audit.shadows, originals.shadows)
    ranked = audit if np.array_equal(audit.shadows, shadows) else tried_audit(scores, shadows)[0]
    if ranked is None:
        return dict.fromkeys(SLICES)
    return {name: _part(ranked, mask) for name, mask in _memorised(originals, shadows).items()}


def arm_verdict(
    scores: ArmScores, audits: Mapping[str, Audit], before: Audit | None, originals: OriginalScores
) -> Verdict:
    """The verdict from audits by name, a slice by that of the slice; `before` is the audit of the originals."""
    seen: dict[str, Audit | None] = dict.fromkeys(audits, before)
    if before is not None:
        masks = _memorised(originals, before.shadows)
        seen |= {name: _part(before, mask) for name, mask in masks.items()}
    shadows = np.intersect1d(scores.groups, originals.shadows)
    kept = [float(scores.accuracy["test"][scores.groups == s].mean()) for s in shadows]
    old = originals.accuracy[np.isin(originals.shadows, shadows)]
    return judge_shadows(
        [audit.evidence(name, seen[name], attacks=len(audits)) for name, audit in audits.items()],
        shadows=len(next(iter(audits.values())).shadows),
        drop=mean(old - np.array(kept)) if len(shadows) > 1 else None,
        accuracy=(float(old.mean()), float(np.mean(kept))) if len(shadows) else (),
    )


def _memorised(originals: OriginalScores, shadows: Shadows) -> dict[str, Mask]:
    """Which points are in each slice, seen from each of the shadows: those that the others memorise most."""
    rows = np.searchsorted(originals.shadows, shadows)
    ranked = memorisation(originals.confidence, trained=originals.trained)[rows]
    return {name: most_memorised(ranked, share) for name, share in SLICES.items()}


def _part(audit: Audit, mask: Mask) -> Audit | None:
    return _tried(partial(audit.restricted, mask))[0]


def against_originals(scores: ArmScores, originals: OriginalScores) -> dict[str, Any] | None:
    """The audit whose never-seen scores are those of original models, which nothing was unlearned from."""
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


def retained_change(scores: ArmScores, originals: OriginalScores) -> RetainLeakage | None:
    """How well retained examples are told from unseen ones before and after, over the shadows that have both unlearned
    models and a scored original.
    """
    ours, theirs = np.isin(scores.groups, originals.shadows), np.isin(originals.shadows, scores.groups)
    try:
        return retain_leakage(
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


def reduction(scores: ArmScores, base: ArmScores) -> dict[str, Any] | None:
    """What a defence changes, over the shadows that the arm and its base both have."""
    audits = paired_audits(base, scores)
    return None if audits is None else _change(*audits)


def slice_reductions(scores: ArmScores, base: ArmScores, originals: OriginalScores) -> dict[str, Any]:
    """The same of the points that other shadows memorise most, over the shadows whose originals were scored as well."""
    shadows = np.intersect1d(np.intersect1d(base.groups, scores.groups), originals.shadows)
    before, after = (tried_audit(each, shadows)[0] for each in (base, scores))
    if before is None or after is None:
        return dict.fromkeys(SLICES)
    masks = _memorised(originals, before.shadows)
    parts = {name: (_part(before, mask), _part(after, mask)) for name, mask in masks.items()}
    return {name: None if a is None or b is None else _change(a, b) for name, (a, b) in parts.items()}


def _change(before: Audit, after: Audit) -> dict[str, Any]:
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


def _audit(scores: ArmScores, shadows: Shadows | None) -> Audit:
    rows = slice(None) if shadows is None else np.isin(scores.groups, shadows)
    return shadow_audit(
        scores.confidence[rows],
        forgotten=scores.forgotten[rows],
        never=scores.never[rows],
        groups=scores.groups[rows],
    )


def _tried(make: Callable[[], Audit]) -> tuple[Audit | None, str]:
    """What `make` gives, or why it gives nothing: too few models were made, say."""
    try:
        return make(), ""
    except WarpError as error:
        return None, str(error)
