from __future__ import annotations

import numpy as np
import pytest

from warp_unlearning.attacks.membership.memorisation import memorisation, most_memorised
from warp_unlearning.errors import DataError, InputError


def test_every_shadow_is_judged_by_the_others() -> None:
    draw = np.random.default_rng(20)
    scores, trained = draw.normal(5, 2, size=(6, 9)), draw.random((6, 9)) < 0.5
    trained[:2], trained[2:4] = True, False
    gap, confidence = (memorisation(scores, trained=trained, measure=m) for m in ("gap", "training_confidence"))
    for s in range(6):
        for p in range(9):
            inside = [scores[o, p] for o in range(6) if o != s and trained[o, p]]
            outside = [scores[o, p] for o in range(6) if o != s and not trained[o, p]]
            assert confidence[s, p] == pytest.approx(np.mean(inside))
            assert gap[s, p] == pytest.approx(np.mean(inside) - np.mean(outside))


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
    found = memorisation(np.ones((3, 2)), trained=np.array([[True, True], [False, True], [False, False]]))
    assert np.isnan(found[0, 0])
    assert found[1, 1] == 0


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
