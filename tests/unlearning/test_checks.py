"""What is both to be forgotten and kept, found by content and by index."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, default_collate

from warp_unlearning.data.examples import TensorExamples, as_examples
from warp_unlearning.errors import DataError
from warp_unlearning.unlearning.checks import check_disjoint, check_examples, copies_of


def points(count: int, *, seed: int = 0) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    return TensorExamples(torch.randn(count, 4, generator=generator), torch.arange(count) % 3)


@pytest.mark.parametrize("row", [4096, 5000])
def test_a_row_that_no_model_can_take_is_named(row: int) -> None:
    broken = points(5001)
    broken.x[row, 2] = torch.nan
    with pytest.raises(DataError, match=rf"the retain set has a value that is not finite.* at row {row};"):
        check_examples(nn.Linear(4, 3), {"forget": points(3), "retain": broken})


few = st.lists(st.tuples(st.sampled_from([0.0, 1.0, -1.0]), st.sampled_from([0.0, 2.0]), st.integers(0, 1)), min_size=1)


@settings(deadline=None)
@given(few, few, st.sampled_from([torch.float16, torch.float32, torch.float64]))
def test_copies_are_found_as_by_comparing_all_pairs(
    forget: list[tuple[float, float, int]], retain: list[tuple[float, float, int]], dtype: torch.dtype
) -> None:
    one, other = (
        TensorExamples(torch.tensor([r[:2] for r in rows], dtype=dtype), torch.tensor([r[2] for r in rows]))
        for rows in (forget, retain)
    )
    expected = [j for j, x in enumerate(other.x.tolist()) if x in one.x.tolist()]
    assert copies_of(one, other).tolist() == expected


def test_copies_among_many_rows_whatever_their_label() -> None:
    forget, retain = points(50, seed=1), points(3000, seed=2)
    check_disjoint(forget, retain)
    planted = {9: 3, 1023: 7, 1024: 8, 2999: 49}
    for row, source in planted.items():
        retain.x[row], retain.y[row] = forget.x[source], (forget.y[source] + row % 2) % 3
    assert copies_of(forget, retain).tolist() == list(planted)
    with pytest.raises(DataError, match=r"4 examples of the retain set .* \(first: retain row 9, label 1\)"):
        check_disjoint(forget, retain)
    for x in (forget.x.double(), forget.x.reshape(50, 2, 2)):  # inputs of another type or shape
        assert len(copies_of(forget, TensorExamples(x, forget.y))) == 0


class Numbers(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(i)), i % 3


WHOLE = Numbers()
TENSORS = tuple(default_collate([WHOLE[2], WHOLE[5]]))


@pytest.mark.parametrize(
    ("forget", "retain", "message"),
    [
        (Subset(WHOLE, [1, 5, 2]), Subset(WHOLE, [9, 2, 5]), r"2 indices .* \(first: 2\)"),
        (Subset(WHOLE, torch.tensor([1, 5])), Subset(WHOLE, torch.tensor([5, 6])), r"1 indices .* \(first: 5\)"),
        (WHOLE, WHOLE, "10 indices"),
        (Subset(WHOLE, [4]), WHOLE, r"1 indices .* \(first: 4\)"),
        (WHOLE, Subset(WHOLE, [4]), r"1 indices .* \(first: 4\)"),
        (Subset(Subset(WHOLE, [7, 8, 9]), [0]), Subset(WHOLE, [6, 7]), r"1 indices .* \(first: 7\)"),
        (Subset(WHOLE, [1, 2]), Subset(Numbers(), [1, 2]), "2 examples of the retain set are also in the forget set"),
        (Subset(WHOLE, [1, 2]), TENSORS, "1 examples of the retain set"),
        (TENSORS, WHOLE, "2 examples of the retain set"),
        (Subset(WHOLE, [1, 2]), Subset(WHOLE, [3, 4]), None),
        (Subset(WHOLE, [1, 2]), Subset(Numbers(), [3, 4]), None),
        (Subset(Subset(WHOLE, [7, 8, 9]), [0]), Subset(WHOLE, [0]), None),
    ],
)
def test_parts_of_data_sets(forget: Any, retain: Any, message: str | None) -> None:
    sets = as_examples(forget, what="forget"), as_examples(retain, what="retain")
    if message is None:
        check_disjoint(*sets)
        return
    with pytest.raises(DataError, match=message):
        check_disjoint(*sets)
