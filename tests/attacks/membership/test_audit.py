from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from tests.oracles.simulated_shadows import ShadowLaw, simulate_shadows

from warp_unlearning.attacks.membership.audit import Audit, Observations
from warp_unlearning.attacks.membership.shadow_audit import shadow_audit
from warp_unlearning.attacks.membership.shadow_design import memorisation, most_memorised
from warp_unlearning.errors import InputError
from warp_unlearning.stats.evidence import judge_shadows
from warp_unlearning.stats.intervals import mean, proportion
from warp_unlearning.stats.planning import plan
from warp_unlearning.stats.roc import area
from warp_unlearning.stats.verdict import Verdict, rows_needed


def audited(seed: int | list[int] = 20, **law: Any) -> Audit:
    found = simulate_shadows(ShadowLaw(**law), np.random.default_rng(seed))
    d = found.design
    return shadow_audit(found.scores, forgotten=d.forgotten, never=d.never, groups=d.groups)


def made(positive: list[float], negative: list[float]) -> Audit:
    """Two shadows, one observation a point."""

    def observed(scores: list[float]) -> Observations:
        places = np.arange(len(scores), dtype=np.int32)
        return Observations(np.array(scores), places, places % 2)

    count = max(len(positive), len(negative))
    return Audit(observed(positive), observed(negative), np.arange(2), count, 1.0, "pooled")


def test_its_numbers_are_those_of_the_curve() -> None:
    audit = audited(signal=1.0)
    curve = audit.roc()
    labels = np.repeat([1, 0], [len(audit.positive), len(audit.negative)])
    every = np.concatenate([audit.positive.scores, audit.negative.scores])
    assert audit.auc == pytest.approx(roc_auc_score(labels, every), abs=1e-12)
    assert audit.auc == pytest.approx(curve.auc, abs=1e-12)
    assert audit.balanced_accuracy == curve.balanced_accuracy
    for rate in (0.001, 0.01, 0.05, 0.5):
        assert audit.tpr(rate) == curve.tpr[curve.fpr <= rate].max()
        assert audit.resolvable(rate) == curve.resolvable(rate)


@pytest.mark.parametrize(
    "law",
    [
        {"points": 150},
        {"points": 150, "signal": 1.0, "sibling_correlation": 0.9},
        {"points": 150, "signal": 2.0, "shadow_effect": 0.5},
    ],
)
def test_the_interval_holds_what_such_audits_find_on_average(law: dict[str, Any]) -> None:
    """A small version of the benchmark of coverage: 200 audits, and 600 others for the truth."""
    truth = np.mean([audited([20, 1, i], **law).auc for i in range(600)])
    found = [audited([20, 0, i], **law).interval() for i in range(200)]
    held = sum(interval.low <= truth <= interval.high for interval in found)
    assert proportion(held, 200, level=0.99).low < 0.95 < proportion(held, 200, level=0.99).high + 0.01


def test_points_alone_would_claim_too_much_where_shadows_move_together() -> None:
    ratios = []
    for seed in range(20, 30):
        audit = audited(seed, signal=2.0, shadow_effect=0.5)
        cells = audit.influence()
        assert cells.sum() == pytest.approx(0, abs=1e-12)
        ratios.append(audit.spread().variance / (cells.sum(0) ** 2).sum())
    assert np.mean(ratios) > 3


def test_intervals_of_rates_and_of_slices_are_of_their_own() -> None:
    audit = audited(signal=1.0)
    found = audit.interval(fpr=0.05)
    assert found.low < audit.tpr(0.05) == found.value < found.high
    wide = audit.interval(0.99)
    assert wide.low < audit.interval().low < audit.interval().high < wide.high


def test_rates_that_are_not_resolved_are_not_stated() -> None:
    audit = audited()
    assert audit.rate(0.0001).tpr is None
    assert "unresolved" in str(audit.rate(0.0001))
    assert audit.rate(0.05).tpr == audit.interval(fpr=0.05)


def test_perfect_separation_has_an_interval_by_points() -> None:
    apart = made([2.0, 3.0, 4.0], [0.0, 1.0])
    assert apart.interval() == proportion(3, 3)
    turned = made([0.0, 1.0], [2.0, 3.0])
    assert turned.interval() == proportion(0, 2)
    assert turned.interval(fpr=0.0) == proportion(0, 2)


def test_scores_that_tie_throughout_decide_nothing() -> None:
    found = made([1.0, 1.0, 1.0], [1.0, 1.0])
    assert (found.auc, found.interval().low, found.interval().high) == (0.5, 0.0, 1.0)
    assert found.evidence("U-LiRA", None).seen.low < 0


def test_a_leak_is_found_in_both_directions_and_doubt_is_said() -> None:
    leaky = audited(signal=1.5)
    turned = Audit(
        leaky.negative, leaky.positive, leaky.shadows, leaky.points, leaky.refit, leaky.variance, leaky.notes
    )
    one, other = leaky.interval(), turned.interval()
    assert (other.value, other.low, other.high) == pytest.approx((1 - one.value, 1 - one.high, 1 - one.low))
    assert one.low > 0.5 > other.high
    assert leaky.p_value() < 1e-6
    quiet = audited(22, points=2500)
    assert quiet.interval().low < 0.5 < quiet.interval().high
    assert quiet.p_value() > 0.01


def test_a_defence_is_compared_on_the_same_shadows() -> None:
    base, defended = audited(signal=1.0), audited(signal=0.5)
    found = base.compare(defended)
    assert found.difference.value == pytest.approx(base.auc - defended.auc)
    assert found.difference.low > 0
    apart = np.sqrt(base.spread().variance + defended.spread().variance)
    assert found.difference.high - found.difference.value < 1.4 * apart
    assert found.reduction is not None
    assert 0.3 < found.reduction.low < found.reduction.value < found.reduction.high < 0.8
    rates = base.compare(defended, fpr=0.05)
    assert (rates.base, rates.other, rates.chance) == (base.tpr(0.05), defended.tpr(0.05), 0.05)
    assert base.compare(base).difference.high == 0
    mirror = replace(
        base,
        positive=replace(base.positive, scores=-base.positive.scores),
        negative=replace(base.negative, scores=-base.negative.scores),
    )
    # Turned around, scores leak as much as before.
    assert base.compare(mirror).difference.value == pytest.approx(0, abs=1e-12)
    assert audited(21, points=40).compare(audited(21, points=40, signal=0.01)).reduction is None


def test_audits_of_other_shadows_cannot_be_paired() -> None:
    with pytest.raises(InputError, match="must have the same shadows"):
        audited().compare(audited(points=301))
    with pytest.raises(InputError, match="must have the same shadows"):
        audited().privacy_gain(audited(shadows=8))


def test_the_most_memorised_points_leak_most() -> None:
    found = simulate_shadows(ShadowLaw(points=1000, signal=0.5, tail=1.2), np.random.default_rng(20))
    d = found.design
    audit = shadow_audit(found.scores, forgotten=d.forgotten, never=d.never, groups=d.groups)
    top = most_memorised(memorisation(found.original_scores, trained=d.trained), 0.05)
    sliced = audit.restricted(top)
    assert sliced.auc > audit.auc + 0.15
    assert len(sliced.positive) == int((top & d.trained).sum())
    assert sliced.interval().low > 0.5


def test_a_slice_of_nothing_to_find_stays_at_one_half() -> None:
    areas = []
    for seed in range(20, 30):
        found = simulate_shadows(ShadowLaw(points=1500, sibling_correlation=0.9, tail=1.0), np.random.default_rng(seed))
        d = found.design
        audit = shadow_audit(found.scores, forgotten=d.forgotten, never=d.never, groups=d.groups)
        top = most_memorised(memorisation(found.original_scores, trained=d.trained), 0.05)
        areas.append(audit.restricted(top).auc)
    assert abs(np.mean(areas) - 0.5) < 3.5 * np.std(areas, ddof=1) / np.sqrt(10)


def test_slices_that_do_not_fit_are_refused() -> None:
    audit = audited()
    with pytest.raises(InputError, match="mask of shape"):
        audit.restricted(np.ones((3, 3), dtype=bool))
    with pytest.raises(InputError, match="0 positives"):
        audit.restricted(np.zeros((16, 300), dtype=bool))


def judged(law: ShadowLaw, seed: int = 20, drop: float = 0.001) -> Verdict:
    """The verdict on one simulated experiment, with the slice of the most memorised points."""
    found = simulate_shadows(law, np.random.default_rng(seed))
    d, groups = found.design, np.arange(law.shadows)
    audit = shadow_audit(found.scores, forgotten=d.forgotten, never=d.never, groups=d.groups)
    originals = shadow_audit(found.original_scores, forgotten=d.trained, never=~d.trained, groups=groups)
    top = most_memorised(memorisation(found.original_scores, trained=d.trained), 0.3)
    pairs = {"U-LiRA": (audit, originals), "slice": (audit.restricted(top), originals.restricted(top))}
    evidence = [one.evidence(name, before, attacks=2) for name, (one, before) in pairs.items()]
    assert [e.p for e in evidence] == [one.p_value() for one, _ in pairs.values()]
    drops = mean(drop + 0.001 * np.random.default_rng(seed).normal(size=law.shadows))
    return judge_shadows(evidence, shadows=law.shadows, drop=drops, accuracy=(0.9, 0.9 - drop))


@pytest.mark.parametrize(
    ("law", "drop", "outcome", "reasons"),
    [
        ({"signal": 1.0}, 0.001, "does not hold", ("recognised",)),
        ({"signal": -1.0}, 0.001, "does not hold", ("recognised",)),
        ({"points": 2500}, 0.001, "holds", ("works", "not recognised")),
        ({"points": 2500}, 0.05, "does not hold", ("harmed",)),
        ({"points": 2500, "memorised": 0.0}, 0.001, "cannot be said", ("blind",)),
        ({"points": 80}, 0.001, "cannot be said", ("too few shadows",)),
    ],
)
def test_one_verdict_on_a_method(law: dict[str, Any], drop: float, outcome: str, reasons: tuple[str, ...]) -> None:
    found = judged(ShadowLaw(**law), drop=drop)
    assert (found.outcome, found.reasons) == (outcome, reasons), found.lines
    assert (found.null, found.counted, found.rows) == ("drawn", "shadows", 16)
    assert "by the design of the shadows" in found.assumes[1]
    if reasons == ("too few shadows",):
        forgotten = found.claims[-1]
        error = max(e.error or 0 for e in found.evidence)
        assert forgotten.rows_needed == rows_needed(16, 16, error=error) > 16
        assert f"at 16 shadows; about {forgotten.rows_needed:,} would decide" in forgotten.sentence


def test_honest_methods_are_seldom_accused() -> None:
    found = [judged(ShadowLaw(points=600), seed) for seed in range(100)]
    assert sum(v.exit == 1 for v in found) <= 10


def test_the_summary_is_plain_data() -> None:
    found = json.loads(json.dumps(audited(signal=1.0).summary()))
    assert found["p_value"] < 1e-6
    assert found["auc"]["low"] < found["auc"]["value"] < found["auc"]["high"]
    assert [rate["resolved"] for rate in found["rates"]] == [False, False, True, True]
    assert found["rates"][0]["tpr"] is None
    assert (found["positives"], found["negatives"], found["shadows"], found["points"]) == (2400, 9600, 16, 300)


@pytest.mark.parametrize("tpr", [None, 0.217])
def test_a_plan_foretells_the_width(tpr: float | None) -> None:
    """The half width that `plan` states for a number of shadows against that of simulated audits with as many."""
    options: dict[str, Any] = {"fpr": 0.05, "points": 300, "forget_sets": 4, "tpr": tpr}
    found = plan(half_width=0.02 if tpr is None else 0.03, training_seconds=1, unlearning_seconds=1, **options)
    law = {"shadows": found.shadows, "signal": 0.0 if tpr is None else 1.0}
    fpr = None if tpr is None else 0.05
    intervals = [audited(seed, **law).interval(fpr=fpr) for seed in range(20, 30)]
    assert found.half_width == pytest.approx(np.mean([i.high - i.low for i in intervals]) / 2, rel=0.2)


SHADOWS, POINTS = 10, 120


def audit_of(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> Audit:
    def observed(mask: NDArray[np.bool_]) -> Observations:
        rows, columns = np.nonzero(mask)
        return Observations(scores[mask], columns.astype(np.int32), rows.astype(np.int32))

    return Audit(observed(positive), observed(~positive), np.arange(len(scores)), scores.shape[1], 1.0, "pooled")


def with_and_without_defence(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Scores without and with a defence of the same cells, which owe most of their noise to the same points."""
    draw = np.random.default_rng(seed)
    positive = draw.random((SHADOWS, POINTS)) < 0.5
    noise = draw.normal(size=(SHADOWS, POINTS)) + draw.normal(size=(1, POINTS))
    own = 0.5 * draw.normal(size=(2, SHADOWS, POINTS))
    return noise + 1.5 * positive + own[0], noise + 0.7 * positive + own[1], positive


def privacy_gain(base: float, other: float) -> float:
    return (1 - max(other, 1 - other)) / (1 - max(base, 1 - base)) - 1


@pytest.mark.parametrize("turned", [False, True])
def test_the_privacy_gain_is_the_paired_rise_of_1_less_area_and_a_bootstrap_over_points_gives_its_interval(
    turned: bool,
) -> None:
    base, other, positive = with_and_without_defence(20)
    other = -other if turned else other
    found = audit_of(base, positive).privacy_gain(audit_of(other, positive))
    areas = [area(scores[positive], scores[~positive]) for scores in (base, other)]
    assert found is not None
    assert found.value == pytest.approx(privacy_gain(*areas))
    assert found.value > 0
    draw, boot = np.random.default_rng(21), []
    for _ in range(400):
        pick = draw.integers(POINTS, size=POINTS)
        mask = positive[:, pick]
        boot.append(privacy_gain(*(area(s[:, pick][mask], s[:, pick][~mask]) for s in (base, other))))
    low, high = np.quantile(boot, [0.025, 0.975])
    assert (found.high - found.low) == pytest.approx(high - low, rel=0.2)
    assert found.low == pytest.approx(low, abs=0.25 * (high - low))
    assert found.high == pytest.approx(high, abs=0.25 * (high - low))


def test_privacy_gains_back_and_forth_are_each_others_inverse() -> None:
    base, other, positive = with_and_without_defence(22)
    first, second = audit_of(base, positive), audit_of(other, positive)
    there, back = first.privacy_gain(second), second.privacy_gain(first)
    assert there is not None
    assert back is not None
    assert (1 + there.value) * (1 + back.value) == pytest.approx(1)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1, rel=1e-6)
    assert (1 + there.high) * (1 + back.low) == pytest.approx(1, rel=1e-6)
