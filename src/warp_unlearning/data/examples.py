"""Examples to learn from or to forget: inputs and labels, fetched by index.

Whatever trains, unlearns or scores draws indices from a generator and fetches their batches with `take`, so tensors on
the device and a `Dataset` that decodes files look the same to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from ..errors import DataError, InputError, WarpError, reason
from .table import Digests, check_labels, content_digest

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
    """Examples read from a map-style `Dataset` at every `take`, in this process, so its augmentation stays alive."""

    dataset: Any
    y: Tensor
    device: torch.device
    contents: Digests | None = None

    def take(self, index: Tensor) -> Batch:
        """The examples at `index`, collated and moved to the device."""
        x, y = default_collate([_pair(self.dataset[i], "data") for i in index.tolist()])
        return Batch(x.to(self.device), torch.as_tensor(y).long().to(self.device))

    def to(self, device: torch.device | str) -> DatasetExamples:
        """The same data set, delivered on `device`."""
        return DatasetExamples(self.dataset, self.y.to(device), torch.device(device), self.contents)

    def __len__(self) -> int:
        return len(self.y)


def as_examples(source: object, *, what: str) -> Examples:
    """Accept what users have; `what` names the collection in errors.

    Examples; a pair (x, y), or a mapping, of tensors, numpy arrays or pandas frames and columns (whose floats become
    32-bit); a map-style `Dataset` of pairs or of mappings such as {"pixel_values", "labels"}; or a `DataLoader`, which
    is read once into memory, in the order of its data set: give its `Dataset` to keep random augmentation alive.
    """
    if isinstance(source, Examples):
        return source
    if isinstance(source, DataLoader):
        return _from_loader(source, what)
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        source = source.tensors
    if isinstance(source, Mapping) or (isinstance(source, tuple | list) and len(source) == 2):
        return _from_pair(*_pair(source, what), what)
    other = isinstance(source, IterableDataset | str | bytes | tuple | list)
    array = hasattr(source, "dtype") or hasattr(source, "to_numpy")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not other and not array:
        return _from_dataset(source, what)
    kind = type(source).__name__
    raise InputError(f"the {what} set is a {kind}; give a pair of tensors or arrays (x, y), a Dataset or a DataLoader")


def _pair(item: Any, what: str) -> tuple[Tensor, Tensor]:
    if isinstance(item, Mapping):
        found = [next((item[key] for key in keys if key in item), None) for keys in _KEYS]
        if found[0] is None or found[1] is None:
            has = ", ".join(map(str, item))
            raise DataError(f"an item of the {what} set has {has}; pixel_values and labels are needed")
    elif isinstance(item, tuple | list) and len(item) == 2:
        found = list(item)
    else:
        raise DataError(f"an item of the {what} set is a {type(item).__name__}; each must be a pair (x, y)")
    return _inputs(found[0], what), _labels(found[1], what)


def _inputs(x: Any, what: str) -> Tensor:
    if isinstance(x, Tensor):
        _check_dense(x, what)
        numbers = not x.is_complex() and x.dtype != torch.bool
    else:
        x = _array(x, what)
        numbers = x.dtype.kind in "iuf"
    if not numbers:
        raise DataError(f"x of the {what} set has type {x.dtype}; give numbers, such as float32")
    if isinstance(x, Tensor):
        return x
    return torch.from_numpy(x.astype(np.float32 if x.dtype.kind == "f" else x.dtype.newbyteorder("=")))


def _labels(y: Any, what: str) -> Tensor:
    if isinstance(y, Tensor):
        _check_dense(y, what)
        return y
    array = _array(y, what)
    if array.dtype.kind not in "iufb":
        check_labels(np.atleast_1d(array), f"the {what} set")
    return torch.from_numpy(array.copy())


def _array(values: Any, what: str) -> np.ndarray[Any, Any]:
    plain = values.to_numpy if hasattr(values, "to_numpy") else lambda: values
    return cast("np.ndarray[Any, Any]", _of_user(lambda: np.asarray(plain()), f"an array of the {what} set"))


def _of_user(call: Callable[[], Any], what: str) -> Any:
    """The result of code of the user's, which may raise anything."""
    try:
        return call()
    except Exception as error:
        raise DataError(f"{what} cannot be read ({reason(error)}); mend the data set") from error


def _check_dense(values: Tensor, what: str) -> None:
    if values.is_meta or values.layout != torch.strided or values.is_quantized:
        kind = "quantised" if values.is_quantized else "on the device meta" if values.is_meta else "sparse"
        raise DataError(f"the {what} set is {kind}; give dense tensors with values")


def _from_pair(x: Tensor, y: Tensor, what: str) -> TensorExamples:
    unlike = 0 in (x.dim(), y.dim()) or len(x) != len(y)
    if unlike or (len(x) and (x.dim() < 2 or x.numel() == 0)):
        shapes = f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}"
        raise DataError(f"the {what} set has {shapes}; give a row of numbers for each label, (n, ...) and (n,)")
    check_finite(x, what)
    if len(y):
        check_labels(y.cpu().numpy(), f"the {what} set")
    return TensorExamples(x, y.long())


def check_finite(x: Tensor, what: str, *, start: int = 0) -> None:
    """An error that names the first row of `x`, counted from `start`, with a value that is not finite."""
    for number, rows in enumerate(torch.split(x, 1024) if x.is_floating_point() and x.numel() else ()):
        bad = (~rows.isfinite()).reshape(len(rows), -1).any(1).nonzero()
        if len(bad):
            row = start + 1024 * number + int(bad[0])
            raise DataError(f"the {what} set has a value that is not finite at row {row}; remove or repair it")


def _from_loader(loader: DataLoader[Any], what: str) -> TensorExamples:
    way = "give its Dataset, or a pair of tensors"
    if loader.drop_last:
        raise InputError(
            f"the {what} DataLoader has drop_last=True and leaves examples out; give it with drop_last=False"
        )
    try:
        batches, count = _batches(loader, what, way)
        pairs = [_pair(item, what) for item in batches]
        if not pairs:
            return TensorExamples(torch.empty(0), torch.empty(0, dtype=torch.int64))
        x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    except WarpError:
        raise
    except Exception as error:
        raise DataError(f"the {what} DataLoader cannot be read ({reason(error)}); {way}") from error
    found = _from_pair(x, y, what)
    if count is not None and len(found) != count:
        raise InputError(f"the {what} DataLoader gives {len(found)} of the {count} rows of its data set; {way}")
    return found


def _batches(loader: DataLoader[Any], what: str, way: str) -> tuple[Any, int | None]:
    """Batches in the order of the data set, and how many rows they should have, where that is known."""
    if isinstance(loader.dataset, IterableDataset):
        return loader, None
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InputError(f"the {what} DataLoader is a {type(loader).__name__} with an order of its own; {way}")
    dataset: Any = loader.dataset
    count, whole = len(dataset), loader.batch_sampler is None
    order = loader.sampler if loader.batch_sampler is None else chain.from_iterable(cast(Any, loader.batch_sampler))
    drawn = [int(i) for i in order]
    if sorted(drawn) != list(range(count)):
        seen = f"{len(drawn)} rows, {len({*drawn})} different ones, of the {count}"
        raise InputError(f"the {what} DataLoader reads {seen} of its data set, as its sampler gives them; {way}")
    size = None if whole else loader.batch_size or 256
    batches = DataLoader(dataset, size, collate_fn=loader.collate_fn, num_workers=loader.num_workers)
    return batches, None if whole else count


def _from_dataset(dataset: Any, what: str) -> DatasetExamples:
    labels, digests, first = [], [], None
    for i in range(_of_user(lambda: len(dataset), f"the length of the {what} set")):
        item = f"item {i} of the {what} set"
        x, label = _pair(_of_user(lambda i=i: dataset[i], item), what)  # type: ignore[misc]
        first = first or (x.shape, x.dtype, label.shape)
        if first != (x.shape, x.dtype, label.shape) or x.numel() == 0 or x.dim() == 0:
            raise DataError(f"{item} is {tuple(x.shape)}, {x.dtype}; give items of one shape and type, with values")
        check_finite(x[None], what, start=i)
        labels.append(label)
        digests.append(contents(x[None]))
    if not labels:
        return DatasetExamples(dataset, torch.empty(0, dtype=torch.int64), torch.device("cpu"))
    y = torch.from_numpy(check_labels(torch.stack(labels).numpy(), f"the {what} set"))
    return DatasetExamples(dataset, y, torch.device("cpu"), np.concatenate(digests))


def contents(x: Tensor) -> Digests:
    """A digest of the bits of each row of `x`, with its shape and type."""
    kind = repr((tuple(x.shape[1:]), x.dtype)).encode()
    parts = torch.split(x.detach(), 1024) if len(x) else ()
    bits = (part.cpu().contiguous().flatten(1).view(torch.uint8).numpy() for part in parts)
    return np.array([content_digest(kind, row.tobytes()) for rows in bits for row in rows], dtype="U32")


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
    if not batches:
        return TensorExamples(torch.empty(0), examples.y)
    return TensorExamples(torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches]))
