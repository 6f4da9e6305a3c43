from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.attacks.membership.shadow_design import ShadowDesign, shadow_design
from warp_unlearning.errors import InputError


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
