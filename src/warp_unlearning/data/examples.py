"""Examples to learn from or to forget: inputs and labels, fetched by index.

Everything that trains, unlearns or scores asks for batches by index, with `take`, and draws the indices from a
generator of its own. So tensors on the device and a `Dataset` that decodes files look the same to it, and teacher
logits can be cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from ..errors import DataError, InputError
from .checksum import checksums


class Batch(NamedTuple):
    """Inputs of shape (batch, ...) and labels of shape (batch,), on the device they are computed on."""

    x: Tensor
    y: Tensor


@runtime_checkable
class Examples(Protocol):
    """A finite collection of labelled examples that can be fetched by index."""

    @property
    def y(self) -> Tensor:
        """Every label, shape (n,), int64, on the device."""

    def take(self, index: Tensor) -> Batch:
        """The examples at `index` (int64, on any device), in that order."""

    def to(self, device: torch.device | str) -> Examples:
        """The same examples, delivered on `device`."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class TensorExamples:
    """Examples held as two tensors on one device.

    >>> examples = TensorExamples(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]))
    >>> examples.take(torch.tensor([2, 0])).y.tolist()
    [0, 0]
    """

    x: Tensor
    y: Tensor

    def take(self, index: Tensor) -> Batch:
        """The examples at `index`."""
        where = index.to(self.x.device, non_blocking=True)
        return Batch(self.x.index_select(0, where), self.y.index_select(0, where))

    def to(self, device: torch.device | str) -> TensorExamples:
        """The same examples on `device`."""
        return TensorExamples(self.x.to(device), self.y.to(device))

    def select(self, index: Tensor) -> TensorExamples:
        """The examples at `index` as a collection of their own."""
        return TensorExamples(*self.take(index))

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class DatasetExamples:
    """Examples fetched from a map-style `Dataset` each time they are asked for, so its augmentation stays alive.

    Read in this process: a data set that decodes large files is better turned into tensors once.
    """

    dataset: Dataset[Any]
    y: Tensor
    device: torch.device
    checksums: Tensor | None = None

    def take(self, index: Tensor) -> Batch:
        """The examples at `index`, collated and moved to the device."""
        x, y = default_collate([self.dataset[i] for i in index.tolist()])
        return Batch(x.to(self.device), torch.as_tensor(y).long().to(self.device))

    def to(self, device: torch.device | str) -> DatasetExamples:
        """The same data set, delivered on `device`."""
        return DatasetExamples(self.dataset, self.y.to(device), torch.device(device), self.checksums)

    def __len__(self) -> int:
        return len(self.y)


def as_examples(source: object, *, what: str) -> Examples:
    """Accept what users have: a pair of tensors, a `Dataset` of (x, y), a `DataLoader`, or examples already.

    A `DataLoader` is read once into memory, because its order and sampler are its own; give its `Dataset` to keep
    random augmentation alive. `what` names the collection in errors.
    """
    if isinstance(source, Examples):
        return source
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        return _from_pair(source.tensors, what)
    if isinstance(source, DataLoader):
        return _from_loader(source, what)
    if isinstance(source, tuple | list) and len(source) == 2 and all(isinstance(t, Tensor) for t in source):
        return _from_pair(source, what)
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        return _from_dataset(source, what)
    raise InputError(
        f"the {what} set is a {type(source).__name__}; give a pair of tensors (x, y), a map-style Dataset of (x, y), "
        "or a DataLoader"
    )


def _from_pair(pair: Sequence[Tensor], what: str) -> TensorExamples:
    if pair[0].is_meta or pair[1].is_meta:
        raise DataError(f"the {what} set is on the device meta and holds no numbers; give its values")
    x, y = pair[0], _class_labels(pair[1], what)
    if len(x) != len(y):
        raise DataError(f"the {what} set has {len(x)} inputs and {len(y)} labels; they must be as many")
    return TensorExamples(x, y)


def _from_loader(loader: DataLoader[Any], what: str) -> TensorExamples:
    if loader.drop_last:
        raise InputError(
            f"the {what} DataLoader has drop_last=True, so some examples would be left out without notice; "
            "give it with drop_last=False"
        )
    pairs = [_as_pair(item, what) for item in loader]
    if not pairs:
        return TensorExamples(torch.empty(0), torch.empty(0, dtype=torch.int64))
    return _from_pair((torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])), what)


def _from_dataset(dataset: Dataset[Any], what: str) -> DatasetExamples:
    count = len(cast(Sequence[Any], dataset))
    labels, sums = [], []
    for i in range(count):
        x, label = _as_pair(dataset[i], what)
        if x.is_floating_point() and not bool(x.isfinite().all()):
            raise DataError(f"the {what} set has a value that is not finite at item {i}; remove or repair it")
        labels.append(label)
        sums.append(checksums(x.unsqueeze(0)))
    y = _class_labels(torch.stack(labels), what) if labels else torch.empty(0, dtype=torch.int64)
    found = torch.cat(sums) if sums else torch.empty(0, dtype=torch.int64)
    return DatasetExamples(dataset, y, torch.device("cpu"), found)


def _as_pair(item: Any, what: str) -> tuple[Tensor, Tensor]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"an item of the {what} set is a {type(item).__name__}; each must be a pair (x, y)")
    return torch.as_tensor(item[0]), torch.as_tensor(item[1])


def _class_labels(y: Tensor, what: str) -> Tensor:
    if y.dim() != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(
            f"the labels of the {what} set have shape {tuple(y.shape)} and type {y.dtype}; "
            "give one whole-number class a row, shape (n,)"
        )
    return y.long()


def index_device(examples: Examples) -> torch.device:
    """Where indices are best drawn to: beside tensors, so that no batch waits for its indices to be sent; on the CPU
    where items are fetched one by one.
    """
    return examples.x.device if isinstance(examples, TensorExamples) else torch.device("cpu")


def in_order(count: int, batch_size: int) -> Iterator[Tensor]:
    """Index batches 0, 1, 2, ... of at most `batch_size`, for a pass that scores every example once.

    >>> [b.tolist() for b in in_order(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    yield from torch.split(torch.arange(count), batch_size)


def as_tensors(examples: Examples, *, batch_size: int = 256) -> TensorExamples:
    """The examples as two tensors, each fetched once, so that augmentation gives every reader the same inputs."""
    if isinstance(examples, TensorExamples) or len(examples) == 0:
        return examples if isinstance(examples, TensorExamples) else TensorExamples(torch.empty(0), examples.y)
    batches = [examples.take(index) for index in in_order(len(examples), batch_size)]
    return TensorExamples(torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches]))
