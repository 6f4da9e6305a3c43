"""Rows that are taken later are those that would have been taken at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset
from warp_unlearning.data.taken import Taken, take_later, taken

from warp_unlearning.data.examples import TensorExamples, as_examples


class Squares(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(i * i)), i % 2


def test_tensors_are_taken_when_they_are_asked_for() -> None:
    examples = TensorExamples(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 3]))
    x, y = take_later(examples, torch.tensor([3, 1]))
    assert isinstance(x, Taken)
    assert isinstance(y, Taken)
    examples.x[3] = -1
    assert taken(x).tolist() == [[-1, -1], [2, 3]]
    assert taken(y).tolist() == [3, 1]


def test_items_of_a_dataset_are_fetched_at_once() -> None:
    x, y = take_later(as_examples(Squares(), what="forget"), torch.tensor([3, 1]))
    assert isinstance(x, Tensor)
    assert taken(x).tolist() == [[9, 9], [1, 1]]
    assert taken(y).tolist() == [1, 1]
