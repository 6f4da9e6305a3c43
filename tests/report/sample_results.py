"""A results file of a shadow audit whose shadows are simulated and whose statistics are real."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.oracles.simulated_shadows import ShadowLaw, SimulatedShadows, simulate_shadows

from warp_unlearning.attacks.membership.audit import Audit
from warp_unlearning.attacks.membership.shadow_audit import audit_against_originals, retain_leakage, shadow_audit
from warp_unlearning.attacks.membership.shadow_design import memorisation, most_memorised
from warp_unlearning.data.files import to_json
from warp_unlearning.stats.area import strength_of
from warp_unlearning.stats.evidence import judge_shadows
from warp_unlearning.stats.intervals import Estimate, mean, proportion
from warp_unlearning.stats.roc import RATES, Rate, rate_influence, roc
from warp_unlearning.stats.verdict import Verdict

METHODS = {"ngp": 1.4, "scrub": 1.0, "pgu": 0.7, "salun": 0.45, "srf_on": 0.25, "bad_teacher": 0.0}
KEPT = {None: 1.0, "warp": 0.35, "fastwarp": 0.4, "cob": 0.95, "conjugate": 0.6}


def shadow_sample(
    *,
    methods: tuple[str, ...] = ("ngp", "scrub", "bad_teacher"),
    defenses: tuple[str | None, ...] = (None, "warp"),
    points: int = 160,
    shadows: int = 12,
    seed: int = 20,
) -> dict[str, Any]:
    """Plain data in the form that the file has."""
    arms = []
    for method in methods:
        base: Audit | None = None
        for defense in defenses:
            law = ShadowLaw(
                points=points, shadows=shadows, forget_sets=4, signal=METHODS[method] * KEPT[defense], tail=0.6
            )
            shadow = simulate_shadows(law, np.random.default_rng(seed))
            arm, audit = _arm(method, defense, shadow, base, np.random.default_rng(seed + 1))
            base = audit if defense is None else base
            arms.append(arm)
    jobs = 4 * shadows * len(arms)
    found = to_json(
        {
            "schema_version": 2,
            "kind": "shadow",
            "date": "2026-01-02T03:04:05+00:00",
            "audited": {
                "data": "digits",
                "model": "small_resnet",
                "classes": [str(i) for i in range(10)],
                "shadows": shadows,
                "forget_sets": 4,
                "points": points,
                "forgotten_share": 0.25,
                "forget_set_size": points // 8,
                "training_examples": points // 2,
                "seed": seed,
            },
            "threat": [
                "The attacker holds the outputs of the model after forgetting, and has trained models of their own.",
                "The attacker holds the weights before and after for the tests that compare weights.",
                "The attacker does not know what a defence drew at random.",
            ],
            "arms": arms,
            "stages": [
                {"name": "train", "jobs": shadows, "done": shadows, "failed": 0, "seconds": 96.5},
                {"name": "unlearn", "jobs": jobs, "done": jobs, "failed": 0, "seconds": 310.25},
                {"name": "score", "jobs": jobs, "done": jobs, "failed": 0, "seconds": 41.0},
            ],
            "failures": [],
            "notes": ["The defence's seeds were drawn at planning; this is an experiment."],
            "not_tested": [
                "Whether forgotten images can be reconstructed.",
                "Attackers who see the model between two updates.",
            ],
            "configuration": {
                "training": {"epochs": 20, "lr": 0.1, "betas": [0.9, 0.99]},
                "data": {"name": "digits", "path": None},
                "seed": seed,
            },
            "digests": {"data": "sha256:" + "ab" * 32, "design": "sha256:" + "cd" * 32},
            "versions": {"warp-unlearning": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11"},
            "hardware": {"processor": "two cores", "cores": 2, "memory": "8 GiB"},
        }
    )
    return dict(found)


def _arm(
    method: str, defense: str | None, shadow: SimulatedShadows, base: Audit | None, generator: np.random.Generator
) -> tuple[dict[str, Any], Audit]:
    design = shadow.design
    audit = shadow_audit(shadow.scores, forgotten=design.forgotten, never=design.never, groups=design.groups)
    remembered = memorisation(shadow.original_scores, trained=design.trained)
    slices = {
        f"most memorised {100 * share:g} %": audit.restricted(most_memorised(remembered, share))
        for share in (0.01, 0.05)
    }
    retained = retain_leakage(
        shadow.scores,
        retained=design.retained,
        never=design.never,
        groups=design.groups,
        original_scores=shadow.original_scores,
        original_trained=design.trained,
    )
    signal = METHODS[method] * KEPT[defense]
    forgotten, never = generator.normal(1.5 * signal, 1, 400), generator.normal(0, 1, 1200)
    white = mean([float(np.mean(generator.normal(0.5 + signal / 4, 0.03))) for _ in range(4)])
    originals = audit_against_originals(
        shadow.scores,
        forgotten=design.forgotten,
        groups=design.groups,
        original_scores=shadow.original_scores,
        original_never=~design.trained,
    )
    arm = {
        "name": method if defense is None else f"{method} + {defense}",
        "method": method,
        "defense": defense,
        "settings": {"lr": 0.05, "epochs": 3},
        "complete": True,
        "missing": 0,
        "verdict": _judged({"U-LiRA": audit} | slices, retained.before).as_json(),
        "all": audit.summary(),
        "slices": {name: part.summary() for name, part in slices.items()},
        "against_originals": originals.summary(),
        "retain_leakage": {
            "before": _plain(retained.before.interval()),
            "after": _plain(retained.after.interval()),
            "difference": _plain(retained.change.difference),
        },
        "reduction": None if base is None or defense is None else _reduction(base, audit),
        "gradient_test": {
            "auc": _plain(white),
            "pairs": 4,
            "rates": [_rate(forgotten, never, fpr) for fpr in RATES],
        },
        "strongest": {"attack": "update alignment after span", "strength": _plain(strength_of(white)), "pairs": 4},
        "accuracy": {
            "forget": _plain(proportion(int(700 - 120 * signal), 1000)),
            "retain": _plain(proportion(985, 1000)),
            "test": _plain(proportion(951 if defense is None else 942, 1000)),
        },
        "roc": _thinned(audit),
        "histogram": _histogram(audit),
        "risk": _risk(audit, generator),
        "seconds": {
            "unlearning": _plain(mean(generator.normal(2.0 if defense is None else 3.1, 0.2, 8))),
            "defense_share": None if defense is None else {"value": 0.34, "low": 0.3, "high": 0.38},
        },
    }
    return arm, audit


def _judged(audits: dict[str, Audit], before: Audit) -> Verdict:
    evidence = [audit.evidence(name, before, attacks=len(audits)) for name, audit in audits.items()]
    return judge_shadows(
        evidence, shadows=len(before.shadows), drop=mean([0.001, 0.002, 0.003]), accuracy=(0.953, 0.951)
    )


def _reduction(base: Audit, audit: Audit) -> dict[str, Any]:
    area, rate = base.compare(audit), base.compare(audit, fpr=0.01)
    return {"auc": _maybe(area.reduction), "tpr_at_1": _maybe(rate.reduction), "note": area.note or rate.note}


def _rate(forgotten: np.ndarray, never: np.ndarray, fpr: float) -> dict[str, Any]:
    curve, count = roc(forgotten, never), len(forgotten)
    found = proportion(round(rate_influence(forgotten, never, fpr).value * count), count)
    return Rate(fpr, found if curve.resolvable(fpr) else None, curve.negatives).summary()


def _thinned(audit: Audit) -> dict[str, Any]:
    curve = audit.roc()
    keep = np.unique(np.r_[0, np.geomspace(1, len(curve.fpr) - 1, 500).astype(int)])
    return {"fpr": curve.fpr[keep].tolist(), "tpr": curve.tpr[keep].tolist()}


def _histogram(audit: Audit) -> dict[str, Any]:
    both = np.concatenate([audit.positive.scores, audit.negative.scores])
    edges = np.linspace(*np.quantile(both, (0.002, 0.998)), 41)
    return {
        "edges": edges.tolist(),
        "forgotten": np.histogram(audit.positive.scores, edges, density=True)[0].tolist(),
        "never": np.histogram(audit.negative.scores, edges, density=True)[0].tolist(),
    }


def _risk(audit: Audit, generator: np.random.Generator) -> dict[str, Any]:
    scores = audit.positive.scores[:1000]
    norms = np.exp(0.25 * scores + generator.normal(0, 0.8, len(scores)))
    return {"gradient_norm": norms.tolist(), "score": scores.tolist()}


def _plain(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _maybe(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else _plain(estimate)
