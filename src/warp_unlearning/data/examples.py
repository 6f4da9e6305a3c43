"""Examples to learn from or to forget: inputs and labels, fetched by index.

Everything that trains, unlearns or scores asks for batches by index, with `take`, and draws the indices from a
generator of its own. So tensors on the device and a `Dataset` that decodes files look the same to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from ..errors import DataError, InputError
from .table import check_labels

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KEYS = (("pixel_values", "x", "image", "input"), ("labels", "label", "y"))


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

    dataset: Any
    y: Tensor
    device: torch.device
    checksums: Tensor | None = None

    def take(self, index: Tensor) -> Batch:
        """The examples at `index`, collated and moved to the device."""
        x, y = default_collate([_pair(self.dataset[i], "data") for i in index.tolist()])
        return Batch(x.to(self.device), torch.as_tensor(y).long().to(self.device))

    def to(self, device: torch.device | str) -> DatasetExamples:
        """The same data set, delivered on `device`."""
        return DatasetExamples(self.dataset, self.y.to(device), torch.device(device), self.checksums)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Taken:
    """Rows of `source` at `index`, int64 and beside it, to be taken where they are used, as in a captured update."""

    source: Tensor
    index: Tensor

    def now(self) -> Tensor:
        """These rows."""
        return self.source.index_select(0, self.index)


Given = Tensor | Taken


def take_later(examples: Examples, index: Tensor) -> tuple[Given, Given]:
    """Inputs and labels at `index`: still to be taken where they lie in tensors, fetched where they do not."""
    if not isinstance(examples, TensorExamples):
        return examples.take(index)
    where = index.to(examples.x.device, non_blocking=True)
    return Taken(examples.x, where), Taken(examples.y, where)


def taken(given: Given) -> Tensor:
    """The tensor itself."""
    return given.now() if isinstance(given, Taken) else given


def as_examples(source: object, *, what: str) -> Examples:
    """Accept what users have; `what` names the collection in errors.

    Examples; a pair (x, y), or a mapping, of tensors, numpy arrays or pandas frames and columns (whose floats become
    32-bit); a map-style `Dataset` of pairs or of mappings such as {"pixel_values", "labels"}; or a `DataLoader`, which
    is read once into memory, in the order of its data set: give its `Dataset` to keep random augmentation alive.
    """
    if isinstance(source, Examples):
        return source
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        return _from_pair(*source.tensors, what)
    if isinstance(source, DataLoader):
        return _from_loader(source, what)
    if isinstance(source, Mapping) or (isinstance(source, tuple | list) and len(source) == 2):
        return _from_pair(*_pair(source, what), what)
    one = isinstance(source, IterableDataset | Tensor | str | bytes | tuple | list | np.ndarray)
    if one or hasattr(source, "to_numpy") or not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        raise InputError(
            f"the {what} set is a {type(source).__name__}; give a pair of tensors or arrays (x, y), a map-style "
            "Dataset of (x, y), or a DataLoader"
        )
    return _from_dataset(source, what)


def _pair(item: Any, what: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a pair or mapping, as tensors."""
    if isinstance(item, Mapping):
        names = [next((key for key in keys if key in item), None) for keys in _KEYS]
        found = [item[name] for name in names if name is not None]
        way = f"has {', '.join(map(str, item))}; pixel_values and labels are needed"
    else:
        found = list(item) if isinstance(item, tuple | list) else []
        way = f"is a {type(item).__name__}; each must be a pair (x, y)"
    if len(found) != 2:
        raise DataError(f"an item of the {what} set {way}")
    x, y = (_tensor(value) for value in found)
    if not isinstance(x, Tensor) or x.is_complex() or x.dtype == torch.bool:
        raise DataError(f"x of the {what} set has type {x.dtype}; give numbers, such as x.astype('float32')")
    return x, y if isinstance(y, Tensor) else torch.from_numpy(check_labels(np.atleast_1d(y), f"the {what} set"))


def _tensor(values: Any) -> Any:
    """A tensor where there are numbers, else an array."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if array.dtype.kind not in "iufb":
        return array
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")))


def _from_pair(x: Tensor, y: Tensor, what: str) -> TensorExamples:
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
        shapes = f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}"
        raise DataError(f"the {what} set has {shapes}; give one row an example, and one label a row")
    _check_finite(x, what)
    return TensorExamples(x, _labels(y, what))


def _labels(y: Tensor, what: str) -> Tensor:
    if len(y):
        check_labels(y.cpu().numpy(), f"the {what} set")
    return y.long()


def _check_finite(x: Tensor, what: str, start: int = 0) -> None:
    for number, rows in enumerate(torch.split(x, 1024)):
        bad = (~rows.isfinite()).unsqueeze(1).flatten(1).any(1)
        if bad.any():
            row = start + 1024 * number + int(bad.nonzero()[0])
            raise DataError(f"the {what} set has a value that is not finite at item {row}; remove or repair it")


def _from_loader(loader: DataLoader[Any], what: str) -> TensorExamples:
    if loader.drop_last or type(loader).__iter__ is not DataLoader.__iter__:
        raise InputError(
            f"the {what} DataLoader has drop_last=True or an order of its own, so some examples could be left out; "
            "give it with drop_last=False, or give its Dataset"
        )
    batches: Any = loader
    count = None
    if not isinstance(loader.dataset, IterableDataset):
        given: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        drawn = list(given) if loader.batch_sampler is None else [i for batch in given for i in batch]
        count = len(cast(Sized, loader.dataset))
        if sorted(map(int, drawn)) != list(range(count)):
            raise InputError(
                f"the {what} DataLoader reads {len(drawn)} rows, {len(set(map(int, drawn)))} different ones, of the "
                f"{count} of its data set; give its Dataset"
            )
        size = None if loader.batch_sampler is None else loader.batch_size or 256
        batches = DataLoader(
            loader.dataset, batch_size=size, collate_fn=loader.collate_fn, num_workers=loader.num_workers
        )
        count = count if size else None
    pairs = [_pair(item, what) for item in batches]
    if not pairs:
        return TensorExamples(torch.empty(0), torch.empty(0, dtype=torch.int64))
    found = _from_pair(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), what)
    if count is not None and len(found) != count:
        raise InputError(f"the {what} DataLoader gives {len(found)} of the {count} rows of its data set; give that")
    return found


def _from_dataset(dataset: Any, what: str) -> DatasetExamples:
    labels, sums = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for i in range(len(dataset)):
        x, label = _pair(dataset[i], what)
        _check_finite(x.unsqueeze(0), what, i)
        labels.append(label.unsqueeze(0))
        sums.append(checksums(x.unsqueeze(0)))
    return DatasetExamples(dataset, _labels(torch.cat(labels), what), torch.device("cpu"), torch.cat(sums))


def checksums(x: Tensor) -> Tensor:
    """Σ_j w_j · bits(x_ij) plus a number for the shape and type of a row, modulo 2⁶⁴, with fixed odd weights w; (n,).

    Integer arithmetic, so that the sum does not depend on its order; the same on every device.

    >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> a, b, c = checksums(x).tolist()
    >>> (a == c, a == b)
    (True, False)
    """
    width = x[0].numel() if len(x) else 0
    weights = torch.randint(-(2**61), 2**61, (width,), generator=torch.Generator().manual_seed(1)) * 2 + 1
    weights = weights.to(x.device)
    kind = int.from_bytes(sha256(repr((x.shape[1:], x.dtype)).encode()).digest()[:7], "big")
    bits = (part.flatten(1).contiguous().view(_INTEGERS[x.element_size()]).long() for part in torch.split(x, 1024))
    parts = [(part * weights).sum(1) + kind for part in bits]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def index_device(examples: Examples) -> torch.device:
    """Where indices are best drawn to: beside tensors, or on the CPU where items are fetched one by one."""
    return examples.x.device if isinstance(examples, TensorExamples) else torch.device("cpu")


def in_order(count: int, batch_size: int) -> Iterator[Tensor]:
    """Index batches 0, 1, 2, ... of at most `batch_size`, for a pass that scores every example once.

    >>> [b.tolist() for b in in_order(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    yield from torch.split(torch.arange(count), batch_size)


def as_tensors(examples: Examples, *, batch_size: int = 256) -> TensorExamples:
    """The examples as two tensors, each fetched once, so that augmentation gives every reader the same inputs."""
    if isinstance(examples, TensorExamples):
        return examples
    batches = [examples.take(index) for index in in_order(len(examples), batch_size) if len(index)]
    return TensorExamples(torch.cat([batch.x for batch in batches] or [torch.empty(0)]), examples.y)
