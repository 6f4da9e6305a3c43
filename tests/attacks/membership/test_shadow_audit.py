from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.simulated_shadows import ShadowLaw, SimulatedShadows, simulate_shadows

from warp_unlearning.attacks.membership import shadow_audit as module
from warp_unlearning.attacks.membership.audit import Audit
from warp_unlearning.attacks.membership.shadow_audit import (
    Fits,
    Variance,
    audit_against_originals,
    retain_leakage,
    shadow_audit,
    variances,
)
from warp_unlearning.errors import DataError, InputError


def simulated(seed: int = 20, **law: Any) -> SimulatedShadows:
    return simulate_shadows(ShadowLaw(**law), np.random.default_rng(seed))


def audited(found: SimulatedShadows, variance: Variance = "auto") -> Audit:
    d = found.design
    return shadow_audit(found.scores, forgotten=d.forgotten, never=d.never, groups=d.groups, variance=variance)


def left_out(has: list[list[int]], shadow: int, complement: int | None) -> set[int]:
    """The shadow itself and, where it holds one kind only, its complement or the shadow of the other kind with the same
    rank.
    """
    holds = [shadow in members for members in has]
    if all(holds):
        return {shadow}
    own, other = (has[0], has[1]) if holds[0] else (has[1], has[0])
    if complement in other:
        return {shadow, complement}
    for mine, partner in zip(own, cycle(other), strict=False):
        if mine == shadow:
            return {shadow, partner}
    raise AssertionError


def by_loops(
    scores: np.ndarray, kinds: tuple[np.ndarray, np.ndarray], groups: np.ndarray, variance: str
) -> dict[tuple[int, int], float]:
    """The log likelihood ratio of every observation, one fit at a time; pooled variances per shadow left out."""
    models, points = scores.shape
    names = sorted(set(groups.tolist()))
    unseen = {g: frozenset(np.nonzero(kinds[1][groups == g].any(0))[0].tolist()) for g in names}
    complement = {g: [o for o in names if unseen[o] == set(range(points)) - unseen[g]] for g in names}

    def fits(shadow: int, point: int) -> list[tuple[float, float, int]]:
        has = [[g for g in names if kind[groups == g, point].any()] for kind in kinds]
        held = any(shadow in members for members in has)
        gone = left_out(has, shadow, next(iter(complement[shadow]), None)) if held else {shadow}
        out = []
        for kind in kinds:
            x = [scores[m, point] for m in range(models) if kind[m, point] and groups[m] not in gone]
            out.append((float(np.mean(x)), float(np.sum((x - np.mean(x)) ** 2)), len(x)))
        return out

    pooled = {}
    for g in names:
        every = [fits(g, p) for p in range(points)]
        pooled[g] = [sum(f[k][1] for f in every) / sum(f[k][2] - 1 for f in every) for k in (0, 1)]
    result = {}
    for m in range(models):
        for p in range(points):
            if not (kinds[0][m, p] or kinds[1][m, p]):
                continue
            (m1, q1, n1), (m0, q0, n0) = fits(groups[m], p)
            v1, v0 = pooled[groups[m]]
            if variance == "per_point":
                v1, v0 = q1 / (n1 - 1), q0 / (n0 - 1)
            elif variance == "scaled":
                scale = (q1 / v1 + q0 / v0 + 4) / (n1 + n0 - 2 + 4)
                v1, v0 = v1 * scale, v0 * scale
            x = scores[m, p]
            result[m, p] = -0.5 * (np.log(v1) + (x - m1) ** 2 / v1) + 0.5 * (np.log(v0) + (x - m0) ** 2 / v0)
    return result


@pytest.mark.parametrize("variance", ["per_point", "pooled", "scaled"])
@pytest.mark.parametrize("law", [{"share": 1.0}, {"share": 0.8, "forget_sets": 2}])
def test_it_equals_a_loop_over_observations(
    variance: Variance, law: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5)
    found = simulated(points=12, shadows=16, signal=1.0, **({"forget_sets": 3} | law))
    d = found.design
    shuffled = np.random.default_rng(1).permutation(len(d.groups))
    scores, groups = found.scores[shuffled], 7 * d.groups[shuffled] - 3
    kinds = d.forgotten[shuffled], d.never[shuffled]
    audit = shadow_audit(scores, forgotten=kinds[0], never=kinds[1], groups=groups, variance=variance)
    expected = by_loops(scores, kinds, groups, variance)
    for kind, observed in zip(kinds, (audit.positive, audit.negative), strict=True):
        truth = sorted((p, groups[m], expected[m, p]) for m, p in np.argwhere(kind).tolist())
        ours = sorted(zip(observed.points, audit.shadows[observed.shadows], observed.scores, strict=True))
        np.testing.assert_allclose(np.array(ours), np.array(truth), rtol=1e-9, atol=1e-9)


def test_a_shadow_that_holds_both_kinds_of_a_point_leaves_out_itself_alone() -> None:
    """Groups of complementary pairs: each holds a model that forgot the point and some that never saw it."""
    found = simulated(points=10, shadows=12, forget_sets=2)
    d = found.design
    audit = shadow_audit(found.scores, forgotten=d.forgotten, never=d.never, groups=d.groups // 2, variance="pooled")
    expected = by_loops(found.scores, (d.forgotten, d.never), d.groups // 2, "pooled")
    ours = sorted(audit.positive.scores)
    np.testing.assert_allclose(ours, sorted(expected[m, p] for m, p in np.argwhere(d.forgotten).tolist()), rtol=1e-9)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("variance", ["auto", "per_point"])
def test_where_nothing_leaks_the_area_is_one_half(correlation: float, variance: Variance) -> None:
    """Leaving out the own shadow alone would give 0.49 here, and leaving out one model 0.53 at correlation 0.9."""
    areas = [
        audited(simulated(seed, points=1500, sibling_correlation=correlation), variance).auc for seed in range(20, 30)
    ]
    error = np.std(areas, ddof=1) / np.sqrt(len(areas))
    assert abs(np.mean(areas) - 0.5) < 3.5 * error
    assert error < 0.0025


def test_a_complement_feigns_no_leak_where_shadows_forget_a_part() -> None:
    """With the r-th shadow of the other kind left out in place of the complement this is 0.539. Of points that three
    shadows forgot: those that more of them did have better fits and a larger part in the forgotten observations, which
    alone makes 0.51 of all points together with 16 shadows.
    """
    areas = []
    for seed in range(20, 36):
        found = simulated(
            seed, points=3000, share=0.4, sibling_correlation=0.9, complement_correlation=-0.65, memorised=0.0
        )
        three = found.design.forgotten.sum(0) == 3
        areas.append(audited(found).restricted(np.broadcast_to(three, found.original_scores.shape)).auc)
    error = np.std(areas, ddof=1) / np.sqrt(len(areas))
    assert abs(np.mean(areas) - 0.5) < 3.5 * error
    assert error < 0.004


def test_siblings_taken_for_strangers_feign_a_leak() -> None:
    found = simulated(points=1500, sibling_correlation=0.9)
    d = found.design
    fooled = shadow_audit(found.scores, forgotten=d.forgotten, never=d.never)
    assert fooled.auc > audited(found).auc + 0.015


def test_a_separation_is_found_at_its_known_area() -> None:
    """Unit normals at distance 2 with very many shadows: Φ(2/√2)."""
    found = simulated(points=60, shadows=200, forget_sets=1, signal=2.0, scale_spread=0.0, sibling_correlation=0.0)
    audit = audited(found)
    assert audit.variance == "per_point"
    assert audit.auc == pytest.approx(0.9214, abs=0.008)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.1, 10), st.floats(-1e6, 1e6))
def test_units_and_origin_of_scores_do_not_matter(scale: float, shift: float) -> None:
    found = simulated(points=30, shadows=8, signal=1.0)
    moved = SimulatedShadows(found.design, scale * found.scores + shift, found.original_scores)
    np.testing.assert_allclose(audited(moved).positive.scores, audited(found).positive.scores, atol=1e-6)


def test_float32_is_enough() -> None:
    found = simulated(signal=1.0)
    stored = SimulatedShadows(found.design, found.scores.astype(np.float32), found.original_scores)
    assert audited(stored).auc == pytest.approx(audited(found).auc, abs=1e-5)


def test_correctness_can_be_audited_though_most_points_have_no_spread() -> None:
    found = simulated(signal=1.0, memorised=3.0)
    bits = SimulatedShadows(found.design, (found.scores > 2).astype(float), found.original_scores)
    for variance in ("auto", "per_point"):
        assert 0.5 < audited(bits, variance).auc < audited(found).auc


def test_the_variance_is_chosen_by_how_much_there_is() -> None:
    assert audited(simulated(points=40)).variance == "scaled"
    assert audited(simulated(points=40, shadows=132, forget_sets=1)).variance == "per_point"


def test_originals_are_the_other_null() -> None:
    """Unlearning that moves every point by one is seen against originals, and not against unlearned models."""
    found = simulated(points=400, signal=0.0)
    d = found.design
    options: dict[str, Any] = {
        "forgotten": d.forgotten,
        "groups": d.groups,
        "original_scores": found.original_scores,
        "original_never": ~d.trained,
    }
    same = audit_against_originals(found.scores, **options)
    moved = audit_against_originals(found.scores + 1.0, **options)
    assert same.interval().low < 0.5 < same.interval().high
    assert moved.auc > 0.65
    assert len(same.negative) == int((~d.trained).sum())
    assert len(same.shadows) == 16


def test_unlearning_that_exposes_retained_points_is_seen() -> None:
    found = simulated(points=300, memorised=0.5)
    d = found.design
    options: dict[str, Any] = {
        "retained": d.retained,
        "never": d.never,
        "groups": d.groups,
        "original_scores": found.original_scores,
        "original_trained": d.trained,
    }
    exposed = retain_leakage(found.scores + 1.5 * d.retained, **options)
    spared = retain_leakage(found.scores - 0.5 * d.retained, **options)
    assert exposed.change.difference.low > 0
    assert exposed.after.auc - exposed.before.auc == pytest.approx(exposed.change.difference.value)
    assert spared.change.difference.value < 0
    assert exposed.before.auc == spared.before.auc > 0.55


def test_points_with_too_few_observations_are_dropped_and_counted() -> None:
    found = simulated(points=30, shadows=8)
    d = found.design
    forgotten, never = d.forgotten.copy(), d.never.copy()
    forgotten[:, 4] = False
    never[d.groups != d.groups[never[:, 9]][0], 9] = False
    audit = shadow_audit(found.scores, forgotten=forgotten, never=never, groups=d.groups)
    assert audit.notes == (
        "2 of 30 points were dropped: fewer than 2 shadows forgot or never saw each of them"
        " (1 lack one kind altogether).",
    )
    assert set(audit.positive.points.tolist()) == set(range(30)) - {4, 9}
    assert not np.isin([4, 9], audit.negative.points).any()
    kept = np.delete(np.arange(30), [4, 9])
    without = shadow_audit(found.scores[:, kept], forgotten=forgotten[:, kept], never=never[:, kept], groups=d.groups)
    np.testing.assert_array_equal(without.positive.scores, audit.positive.scores)


def test_what_is_not_observed_may_be_anything() -> None:
    found = simulated(points=30, shadows=8)
    scores = found.scores.copy()
    scores[found.design.retained] = np.nan
    np.testing.assert_array_equal(
        audited(SimulatedShadows(found.design, scores, found.original_scores)).positive.scores,
        audited(found).positive.scores,
    )


def call(**change: Any) -> Audit:
    found = simulated(points=30, shadows=8)
    d = found.design
    options = {"scores": found.scores, "forgotten": d.forgotten, "never": d.never, "groups": d.groups} | change
    return shadow_audit(options.pop("scores"), **options)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scores": np.ones((32, 30))}, DataError, "same score in all models"),
        ({"scores": np.full((32, 30), 0.1), "variance": "per_point"}, DataError, "same score in all models"),
        ({"scores": np.ones((32, 29))}, InputError, r"`forgotten` has shape \(32, 30\)"),
        ({"scores": np.ones(32)}, InputError, r"shape \(32,\)"),
        ({"scores": np.full((32, 30), np.nan)}, DataError, "is nan"),
        ({"scores": np.full((32, 30), np.inf)}, DataError, "is inf"),
        ({"never": np.ones((32, 30), dtype=bool)}, InputError, "must not overlap"),
        ({"never": np.zeros((32, 30), dtype=bool)}, InputError, "none of the 30 points"),
        ({"never": np.zeros((32, 30))}, InputError, "boolean"),
        ({"groups": np.zeros(32, dtype=int)}, InputError, "one shadow group"),
        ({"groups": np.arange(31)}, InputError, "32 models"),
        ({"groups": np.arange(32.0)}, InputError, "float64"),
        ({"variance": "pooled_"}, InputError, "did you mean 'pooled'"),
    ],
)
def test_bad_input_is_one_clear_error(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**change)


def test_originals_need_to_know_which_shadow_a_model_descends_from() -> None:
    found = simulated(points=30, shadows=8)
    d = found.design
    with pytest.raises(InputError, match="one integer for each of 32 models"):
        audit_against_originals(
            found.scores,
            forgotten=d.forgotten,
            groups=None,  # type: ignore[arg-type]
            original_scores=found.original_scores,
            original_never=~d.trained,
        )


def test_originals_of_other_points_are_refused() -> None:
    found = simulated(points=30, shadows=8)
    d = found.design
    with pytest.raises(InputError, match="points must agree"):
        audit_against_originals(
            found.scores,
            forgotten=d.forgotten,
            groups=d.groups,
            original_scores=found.original_scores[:, :20],
            original_never=~d.trained[:, :20],
        )


def fits(noise: float) -> Fits:
    """Two shadows, three points: one observation of the first kind, five of the second with a variance near 4."""
    shape = (2, 3)
    squares = np.array([[14.0, 16.0, 18.0], [15.0, 16.0, 17.0]])
    return Fits(
        mean=(np.zeros(shape), np.ones(shape)),
        squares=(np.full(shape, noise), squares),
        count=(np.ones(shape), np.full(shape, 5.0)),
        centre=np.full(3, 2.0),
        shadows_left=np.ones((2, 3), dtype=np.int64),
    )


@pytest.mark.parametrize("how", ["pooled", "per_point", "scaled"])
@pytest.mark.parametrize("noise", [1e-13, 1e-9])
def test_one_observation_a_fit_has_the_spread_of_the_other_kind_whatever_its_rounding(
    how: Variance, noise: float
) -> None:
    used = np.ones(3, dtype=bool)
    expected, found = (variances(fits(value), used, how) for value in (0.0, noise))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_the_pooled_variance_of_one_observation_is_that_of_the_other_kind() -> None:
    first, second = variances(fits(1e-13), np.ones(3, dtype=bool), "pooled")
    np.testing.assert_allclose(first, second)
    np.testing.assert_allclose(second[:, 0], [48 / 12, 48 / 12])
