"""The points of a tuning: apart from each other, from what is audited, and from the shadows of audits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warp_unlearning.attacks.membership.shadow_design import shadow_design
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.randomness import Streams
from warp_unlearning.studies.tuning_design import TuningShadow, tuning_design

USUAL: dict[str, Any] = {"shadows": 4, "forget_sets": 2, "fraction": 0.1, "seed": 7}


@pytest.mark.parametrize("audited", [None, np.arange(0, 1000, 3)])
def test_a_shadow_divides_the_points(audited: np.ndarray | None) -> None:
    kept = np.arange(1001) if audited is None else np.setdiff1d(np.arange(1001), audited)
    for shadow in tuning_design(1001, **USUAL, audited=audited):
        unseen = np.concatenate([shadow.validation, shadow.held_out])
        assert np.array_equal(np.sort(unseen), np.setdiff1d(kept, shadow.trained))
        assert abs(len(shadow.validation) - len(shadow.held_out)) <= 1
        forgotten = np.concatenate(shadow.forget)
        assert len(np.unique(forgotten)) == len(forgotten) == 2 * round(0.1 * len(shadow.trained)) == 100
        assert np.isin(forgotten, shadow.trained).all()
        assert np.isin(forgotten, kept).all()
        for part in (0, 1):
            retained, measured = shadow.retained(part), shadow.retained_measured(part)
            assert np.array_equal(np.sort(np.concatenate([retained, shadow.forget[part]])), shadow.trained)
            assert np.array_equal(measured, np.intersect1d(retained, kept))


def test_audited_points_are_trained_on_all_the_same() -> None:
    audited = np.arange(0, 1000, 3)
    with_, without = tuning_design(1001, **USUAL, audited=audited), tuning_design(1001, **USUAL)
    for a, b in zip(with_, without, strict=True):
        assert np.array_equal(a.trained, b.trained)


def test_shadows_are_numbered_from_1000_and_come_in_complementary_pairs() -> None:
    design = tuning_design(100, shadows=3, forget_sets=1, fraction=0.2, seed=0)
    assert [shadow.number for shadow in design] == [1000, 1001, 1002]
    assert np.array_equal(np.sort(np.concatenate([design[0].trained, design[1].trained])), np.arange(100))
    assert not np.array_equal(design[2].trained, design[0].trained)
    assert not np.array_equal(design[2].trained, design[1].trained)


def test_more_shadows_leave_the_first_as_they_were_and_another_seed_does_not() -> None:
    def parts(shadow: TuningShadow) -> list[list[int]]:
        return [x.tolist() for x in (shadow.trained, *shadow.forget, shadow.validation, shadow.held_out)]

    few, more = tuning_design(400, **USUAL | {"shadows": 2}), tuning_design(400, **USUAL)
    assert [parts(s) for s in few] == [parts(s) for s in more[:2]]
    other = tuning_design(400, **USUAL | {"seed": 8})
    assert all(parts(a) != parts(b) for a, b in zip(more, other, strict=True))


def test_halves_are_not_those_of_an_audit_of_the_same_seed() -> None:
    generator = np.random.default_rng(Streams(7, "shadow audit").number("design"))
    audit = shadow_design(400, shadows=64, forget_sets=4, generator=generator)
    audited = {row.tobytes() for row in audit.trained}
    for shadow in tuning_design(400, **USUAL):
        mask = np.zeros(400, dtype=bool)
        mask[shadow.trained] = True
        assert mask.tobytes() not in audited


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fraction": 0.01}, "too few for 2 forget sets of 2"),
        ({"fraction": 0.5}, "too few for 2 forget sets of 100"),
        ({"audited": np.arange(10, 400)}, "of 400 points, 10 of them not audited"),
        ({"shadows": 0}, "0 shadows with 2 forget sets"),
    ],
)
def test_too_few_points_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tuning_design(400, **USUAL | changed)


def test_audited_points_that_are_not_there_are_refused() -> None:
    with pytest.raises(DataError, match="the audited row 400 is not there; 400 training rows"):
        tuning_design(400, **USUAL, audited=np.array([1, 400]))
