"""Test examples divided so that classes tell nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.attacks.membership.held_out import divide
from warp_unlearning.errors import DataError


def labels(counts: list[int]) -> torch.Tensor:
    return torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=4).filter(lambda c: sum(c) >= 2),
    st.integers(8, 30),
    st.integers(0, 50),
    st.integers(0, 2**20),
)
def test_classes_are_in_proportion_and_parts_are_disjoint(
    forgotten: list[int], each: int, background: int, seed: int
) -> None:
    forget_y, test_y = labels(forgotten), labels([each] * len(forgotten))
    found = divide(forget_y, test_y, background=background, generator=torch.Generator().manual_seed(seed))
    assert len(found.background) == max(2, min(background, len(test_y) // 3))
    assert not set(found.background.tolist()) & set(found.non_members.tolist())
    assert len(set(found.non_members.tolist())) == len(found.non_members)
    kept = forget_y[found.forget]
    there = test_y[found.non_members]
    shares = [(int((kept == c).sum()), int((there == c).sum())) for c in range(len(forgotten))]
    factor = min((n / f for f, n in shares if f), default=0)
    for f, n in shares:
        assert (n == 0) if f == 0 else factor * f - 1e-9 <= n < (factor + 1) * f + 1


def test_one_class_is_compared_with_that_class_alone() -> None:
    found = divide(labels([0, 9]), labels([40, 40]), background=20, generator=torch.Generator().manual_seed(0))
    assert set(labels([40, 40])[found.non_members].tolist()) == {1}
    assert any("in the forget set's proportions" in note for note in found.notes)


def test_classes_that_the_test_set_lacks_are_left_out_and_said_so() -> None:
    found = divide(labels([5, 0, 5]), labels([30, 30]), background=6, generator=torch.Generator().manual_seed(0))
    assert found.forget.tolist() == [0, 1, 2, 3, 4]
    assert found.notes[0].startswith("5 forgotten examples are of classes that the test set lacks")


def test_draws_follow_the_generator() -> None:
    draws = [
        divide(labels([9, 9]), labels([40, 40]), background=20, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0].background, draws[1].background)
    assert not torch.equal(draws[0].background, draws[2].background)


@pytest.mark.parametrize(
    ("forget", "test", "message"),
    [
        ([1], [9], "1 forgotten and 9 test examples"),
        ([3], [3], "3 forgotten and 3 test examples"),
        ([0, 4], [9], "no examples of the classes that were forgotten"),
        ([9, 1], [1, 10], "give more test examples of the forgotten classes"),
    ],
)
def test_too_few_examples_are_refused(forget: list[int], test: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        divide(labels(forget), labels(test), background=2, generator=torch.Generator().manual_seed(2))


def test_a_rare_class_is_not_lost_to_the_background() -> None:
    for seed in range(20):
        found = divide(labels([5, 5]), labels([100, 4]), background=34, generator=torch.Generator().manual_seed(seed))
        assert len(found.forget) == 10
        assert 2 <= int((labels([100, 4])[found.non_members] == 1).sum()) <= 3


def test_classes_too_rare_to_be_in_proportion_are_left_out_and_said_so() -> None:
    found = divide(labels([100, 1]), labels([60, 60]), background=10, generator=torch.Generator().manual_seed(0))
    assert len(found.forget) == 100
    assert any(note.startswith("1 forgotten examples are of classes too rare") for note in found.notes)
