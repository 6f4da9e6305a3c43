from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from warp_unlearning.data.examples import DatasetExamples, TensorExamples, as_examples, as_tensors, in_order
from warp_unlearning.errors import DataError, InputError

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


class Rows(Dataset[tuple[Tensor, int]]):
    """Items with plain-number labels, and one more visit counted each time an item is fetched."""

    def __init__(self) -> None:
        self.visits = 0

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.visits += 1
        return X[i], int(Y[i])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


@pytest.mark.parametrize(
    "source",
    [(X, Y), [X, Y], TensorDataset(X, Y), Rows(), DataLoader(Rows(), batch_size=4), TensorExamples(X, Y)],
    ids=["pair", "list", "tensor dataset", "dataset", "loader", "examples"],
)
def test_whatever_users_have_gives_the_same_batches(source: object) -> None:
    examples = as_examples(source, what="forget")
    index = torch.tensor([4, 0, 5])
    assert len(examples) == 6
    assert torch.equal(examples.y, Y)
    assert torch.equal(examples.take(index).x, X[index])
    assert torch.equal(examples.take(index).y, Y[index])


def test_a_dataset_is_asked_again_for_every_batch() -> None:
    rows = Rows()
    examples = as_examples(rows, what="retain")
    assert isinstance(examples, DatasetExamples)
    before = rows.visits
    examples.take(torch.tensor([1, 2]))
    assert rows.visits == before + 2


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (5, InputError, "retain set is a int; give a pair of tensors"),
        (Stream(), InputError, "Stream"),
        ((X, Y[:4]), DataError, "6 inputs and 4 labels"),
        ((X, Y.float()), DataError, "torch.float32"),
        ((X, Y.reshape(2, 3)), DataError, r"shape \(2, 3\)"),
        (DataLoader(Rows(), batch_size=4, drop_last=True), InputError, "drop_last=False"),
        (DataLoader(TensorDataset(X), batch_size=2), DataError, r"pair \(x, y\)"),
    ],
)
def test_what_cannot_be_used_is_an_error(source: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_examples(source, what="retain")


def test_a_value_that_is_not_finite_in_a_dataset_is_named() -> None:
    class Damaged(Rows):
        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            x, y = super().__getitem__(i)
            return (x * float("nan") if i == 3 else x), y

    with pytest.raises(DataError, match="not finite at item 3"):
        as_examples(Damaged(), what="forget")


def test_in_order_visits_every_example_once() -> None:
    assert torch.cat(list(in_order(7, 3))).tolist() == list(range(7))


def test_a_data_set_becomes_tensors_by_one_visit_to_each_item() -> None:
    rows = Rows()
    examples = as_examples(rows, what="forget")
    before = rows.visits
    found = as_tensors(examples, batch_size=4)
    assert rows.visits == before + len(Y)
    assert torch.equal(found.x, X)
    assert torch.equal(found.y, Y)
    assert as_tensors(found) is found
