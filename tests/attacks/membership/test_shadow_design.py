from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.simulated_shadows import ShadowLaw, simulate_shadows

from warp_unlearning.attacks.membership.shadow_audit import shadow_audit
from warp_unlearning.attacks.membership.shadow_design import ShadowDesign, memorisation, most_memorised, shadow_design
from warp_unlearning.errors import DataError, InputError


def drawn(points: int = 41, shadows: int = 6, sets: int = 3, share: float = 1.0, seed: int = 20) -> ShadowDesign:
    return shadow_design(points, shadows=shadows, forget_sets=sets, share=share, generator=np.random.default_rng(seed))


@settings(deadline=None, max_examples=40)
@given(st.integers(20, 90), st.integers(1, 6), st.integers(1, 5), st.floats(0.5, 1.0), st.integers(20, 29))
def test_halves_are_complementary_and_parts_disjoint(
    points: int, pairs: int, sets: int, share: float, seed: int
) -> None:
    design = drawn(points, 2 * pairs, sets, share, seed)
    np.testing.assert_array_equal(design.trained[1::2], ~design.trained[0::2])
    np.testing.assert_array_equal(design.trained.sum(0), pairs)
    assert np.all(np.abs(design.trained.sum(1) - points / 2) <= 0.5)
    by_shadow = design.forgotten.reshape(2 * pairs, sets, points)
    assert by_shadow.sum(1).max() <= 1
    assert np.all(by_shadow.any(1) <= design.trained)
    np.testing.assert_array_equal(by_shadow.any(1).sum(1), np.round(share * design.trained.sum(1)))
    sizes = by_shadow.sum(2)
    assert np.all(sizes.max(1) - sizes.min(1) <= 1)


def test_the_three_masks_partition_every_observation() -> None:
    design = drawn(share=0.6)
    np.testing.assert_array_equal(
        design.forgotten.astype(int) + design.never.astype(int) + design.retained.astype(int), 1
    )
    np.testing.assert_array_equal(design.never, ~design.trained[design.groups])
    assert design.forgotten.shape == (18, 41)
    np.testing.assert_array_equal(design.groups, np.repeat(np.arange(6), 3))


def test_with_a_full_partition_every_point_is_forgotten_once_by_each_shadow_that_saw_it() -> None:
    design = drawn(share=1.0)
    np.testing.assert_array_equal(design.forgotten.reshape(6, 3, 41).sum(1), design.trained.astype(int))


def test_the_generator_decides() -> None:
    np.testing.assert_array_equal(drawn(seed=21).part, drawn(seed=21).part)
    assert (drawn(seed=21).part != drawn(seed=22).part).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shadows": 5}, "5 shadows"),
        ({"shadows": 0}, "0 shadows"),
        ({"share": 0.0}, r"is 0\.0"),
        ({"share": 1.5}, r"is 1\.5"),
        ({"sets": 21}, "21 forget sets"),
        ({"sets": 0}, "0 forget sets"),
    ],
)
def test_what_is_no_design_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(**change)


def test_every_shadow_is_judged_by_the_others_without_its_counterpart() -> None:
    draw = np.random.default_rng(20)
    scores, trained = draw.normal(5, 2, size=(8, 9)), draw.random((8, 9)) < 0.5
    trained[:2], trained[2:4] = True, False
    gap, confidence = (memorisation(scores, trained=trained, measure=m) for m in ("gap", "training_confidence"))
    for p in range(9):
        kinds = [[o for o in range(8) if trained[o, p] == kind] for kind in (False, True)]
        for s in range(8):
            own, other = kinds[int(trained[s, p])], kinds[1 - int(trained[s, p])]
            left = {s, other[own.index(s) % len(other)]}
            inside = [scores[o, p] for o in kinds[1] if o not in left]
            outside = [scores[o, p] for o in kinds[0] if o not in left]
            assert confidence[s, p] == pytest.approx(np.mean(inside))
            assert gap[s, p] == pytest.approx(np.mean(inside) - np.mean(outside))


def test_where_nothing_leaks_a_slice_shows_nothing() -> None:
    law = ShadowLaw(points=300, shadows=8, sibling_correlation=0.9, memorised=0.0)
    areas = []
    for seed in range(60):
        drawn = simulate_shadows(law, np.random.default_rng([20, seed]))
        design = drawn.design
        audit = shadow_audit(drawn.scores, forgotten=design.forgotten, never=design.never, groups=design.groups)
        ranked = memorisation(drawn.original_scores, trained=design.trained)
        areas.append(audit.restricted(most_memorised(ranked, 0.05)).auc)
    assert abs(np.mean(areas) - 0.5) < 0.02


def test_a_shadow_does_not_move_its_own_slice() -> None:
    draw = np.random.default_rng(21)
    scores, trained = draw.normal(size=(8, 50)), np.arange(8)[:, None] % 2 == np.arange(50) % 2
    changed = scores.copy()
    changed[3] += draw.normal(0, 100, 50)
    before, after = (most_memorised(memorisation(x, trained=trained), 0.1) for x in (scores, changed))
    np.testing.assert_array_equal(before[3], after[3])
    assert (before != after).any()


def test_the_top_is_what_ranks_highest() -> None:
    values = np.array([[3.0, 1.0, np.nan, 2.0], [0.0, 1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(most_memorised(values, 0.5), [[1, 0, 0, 1], [0, 0, 1, 1]])
    np.testing.assert_array_equal(most_memorised(values, 0.01).sum(1), 1)
    np.testing.assert_array_equal(most_memorised(values, 1.0), ~np.isnan(values))


def test_where_no_other_shadow_saw_a_point_there_is_no_value() -> None:
    trained = np.array([[True, True], [False, True], [False, False], [False, False]])
    found = memorisation(np.ones((4, 2)), trained=trained)
    assert np.isnan(found[:, 0]).all()
    assert (found[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("scores", "trained", "error", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 2), dtype=bool), InputError, "shape"),
        (np.ones((2, 3)), np.ones((2, 3)), InputError, "float64"),
        (np.full((2, 3), np.inf), np.ones((2, 3), dtype=bool), DataError, "6 scores are not finite"),
    ],
)
def test_bad_input_is_refused(scores: np.ndarray, trained: np.ndarray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        memorisation(scores, trained=trained)


def test_unknown_measures_and_shares_are_refused() -> None:
    with pytest.raises(InputError, match="'loss'"):
        memorisation(np.ones((2, 2)), trained=np.ones((2, 2), dtype=bool), measure="loss")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="share is 0"):
        most_memorised(np.ones((2, 2)), 0)
