from __future__ import annotations

import numpy as np
import pytest

from warp_unlearning.attacks.membership.memorisation import memorisation, most_memorised
from warp_unlearning.attacks.membership.shadow_audit import shadow_audit
from warp_unlearning.attacks.membership.simulated_shadows import ShadowLaw, simulate_shadows
from warp_unlearning.errors import DataError, InputError


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
