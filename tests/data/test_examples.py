from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset, default_collate
from torch.utils.data import WeightedRandomSampler as Weighted

from warp_unlearning.data.examples import DatasetExamples, TensorExamples, as_examples, as_tensors
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


class Damaged(Rows):
    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(i)
        return (x * float("nan") if i == 3 else x), y


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


class Frame:
    """What pandas and polars have to give their values by."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def to_numpy(self) -> np.ndarray:
        return self.values


class Named(Dataset[Any]):
    """Items as the data sets of Hugging Face have them."""

    def __init__(self, x: str = "pixel_values", y: str = "labels") -> None:
        self.keys = x, y

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {self.keys[0]: X[i].numpy(), self.keys[1]: int(Y[i]), "name": f"{i}"}


def loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **({"batch_size": 4} | options))


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([(X[:3], Y[:3])])


GENERATOR = torch.Generator().manual_seed(0)
SHUFFLED = RandomSampler(Rows(), generator=torch.Generator().manual_seed(0))
SOURCES = {
    "pair": (X, Y),
    "list": [X, Y],
    "mapping": {"x": X, "y": Y},
    "arrays": (X.numpy(), Y.numpy()),
    "wide arrays": (X.numpy().astype(">f8"), Y.numpy().astype(np.uint8)),
    "frames": (Frame(X.double().numpy()), Frame(Y.numpy())),
    "tensor dataset": TensorDataset(X, Y),
    "dataset": Rows(),
    "subset": Subset(Rows(), range(6)),
    "named items": Named(),
    "other names": Named("image", "label"),
    "loader": loader(Rows()),
    "shuffled loader": loader(Rows(), sampler=SHUFFLED),
    "loader without batches": loader(Named(), batch_size=1, shuffle=True),
    "loader of named items": loader(Named()),
    "loader of a stream": loader(Stream()),
    "examples": TensorExamples(X, Y),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_whatever_users_have_gives_the_same_batches(source: object) -> None:
    examples = as_examples(source, what="forget")
    index = torch.tensor([4, 0, 5])
    assert len(examples) == 6
    assert torch.equal(examples.y, Y)
    assert torch.equal(examples.take(index).x, X[index])
    assert torch.equal(examples.take(index).y, Y[index])


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (5, InputError, "retain set is a int; give a pair of tensors"),
        ("xy", InputError, "is a str"),
        (X, InputError, "is a Tensor"),
        (Stream(), InputError, "Stream"),
        ((X, Y[:4]), DataError, r"x of shape \(6, 2\) and y of shape \(4,\)"),
        ((X, Y.float()), DataError, "type float32; give whole-number classes"),
        ((X, Y > 1), DataError, "type bool"),
        ((X, Y.numpy() / 2), DataError, "type float64; .* real numbers are not classes"),
        ((X, Y - 1), DataError, "-1 in row 0; number the classes from 0"),
        ((X, Y.reshape(2, 3)), DataError, r"y of shape \(2, 3\)"),
        ((X, torch.eye(3)[Y]), DataError, r"several classes at once; .*argmax\(1\)"),
        ((X, Y[:, None]), DataError, r"shape \(6, 1\)"),
        ((X, np.array(list("aabbcc"))), DataError, "names such as 'a'; number the classes"),
        ((X.numpy(), np.array(list("aabbcc"), dtype=object)), DataError, "names such as 'a'"),
        ((X > 3, Y), DataError, "x of the retain set has type torch.bool"),
        ((X.numpy() > 3, Y), DataError, "type bool"),
        ((X * 1j, Y), DataError, "type torch.complex64"),
        ((np.array([["a"]] * 6), Y), DataError, "type <U1"),
        ((X.to("meta"), Y), DataError, "on the device meta"),
        ((torch.where(X == 7, torch.nan, X), Y), DataError, "not finite at row 3"),
        ((np.where(X == 7, np.inf, X), Y), DataError, "not finite at row 3"),
        (Damaged(), DataError, "not finite at row 3"),
        ((X, 3), DataError, r"y of shape \(\);"),
        ({"a": X, "b": Y}, DataError, "has a, b; pixel_values and labels are needed"),
        (Named("pixels"), DataError, "has pixels, labels, name; pixel_values"),
        (loader(Rows(), drop_last=True), InputError, "drop_last=False"),
        (loader(TensorDataset(X), batch_size=2), DataError, r"pair \(x, y\)"),
        (loader(Rows(), sampler=[0, 1, 2, 3]), InputError, "reads 4 rows, 4 different ones, of the 6"),
        (loader(Rows(), sampler=[0, 1, 2, 3, 4, 4]), InputError, "reads 6 rows, 5 different ones, of the 6"),
        (loader(Rows(), sampler=Weighted([1.0] * 6, 6, generator=GENERATOR)), InputError, "of the 6"),
        (loader(Rows(), batch_size=1, batch_sampler=[[0, 1], [2]]), InputError, "reads 3 rows"),
        (loader(Rows(), batch_size=None, sampler=[0, 1]), InputError, "reads 2 rows"),
        (loader(Rows(), collate_fn=lambda items: default_collate(items[:2])), InputError, "gives 4 of the 6 rows"),
        (Own(Rows()), InputError, "is a Own with an order of its own"),
    ],
)
def test_what_cannot_be_used_is_an_error(source: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_examples(source, what="retain")


def test_a_frame_of_pandas_is_read() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [0, 1]})
    examples = as_examples((frame[["a", "b"]], frame["y"]), what="forget")
    assert (examples.take(torch.tensor([1])).x.tolist(), examples.y.tolist()) == ([[2.0, 4.0]], [0, 1])


def test_a_data_set_is_read_again_for_every_batch_and_becomes_tensors_by_one_visit_to_each_item() -> None:
    rows = Rows()
    examples = as_examples(rows, what="retain")
    assert isinstance(examples, DatasetExamples)
    before = rows.visits
    examples.take(torch.tensor([1, 2]))
    assert rows.visits == before + 2
    found = as_tensors(examples, batch_size=4)
    assert rows.visits == before + 2 + len(Y)
    assert torch.equal(found.x, X)
    assert torch.equal(found.y, Y)
    assert as_tensors(found) is found
