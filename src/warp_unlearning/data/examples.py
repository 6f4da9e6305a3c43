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

from ..errors import DataError, InputError, WarpError, reason
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
    other = isinstance(source, IterableDataset | Tensor | str | bytes | tuple | list) or hasattr(source, "to_numpy")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not other and not hasattr(source, "dtype"):
        return _from_dataset(source, what)
    raise InputError(
        f"the {what} set is a {type(source).__name__}; give a pair of tensors or arrays (x, y), a map-style Dataset of "
        "(x, y), or a DataLoader"
    )


def _pair(item: Any, what: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a pair or mapping, as tensors."""
    if isinstance(item, Mapping):
        found = [next((item[key] for key in keys if key in item), None) for keys in _KEYS]
        if found[0] is None or found[1] is None:
            raise DataError(
                f"an item of the {what} set has {', '.join(map(str, item))}; pixel_values and labels are needed"
            )
    elif isinstance(item, tuple | list) and len(item) == 2:
        found = list(item)
    else:
        raise DataError(f"an item of the {what} set is a {type(item).__name__}; each must be a pair (x, y)")
    return _inputs(found[0], what), _labels(found[1], what)


def _inputs(x: Any, what: str) -> Tensor:
    if not isinstance(x, Tensor):
        array = _array(x, what)
        if array.dtype.kind not in "iuf":
            raise DataError(f"x of the {what} set has type {array.dtype}; give numbers, such as x.astype('float32')")
        x = torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")))
    _check_dense(x, what)
    if x.is_complex() or x.dtype == torch.bool:
        raise DataError(f"x of the {what} set has type {x.dtype}; give numbers, such as x.float()")
    return cast(Tensor, x)


def _labels(y: Any, what: str) -> Tensor:
    if isinstance(y, Tensor):
        _check_dense(y, what)
        return y
    array = _array(y, what)
    return torch.from_numpy(array.copy()) if array.dtype.kind in "iufb" else torch.as_tensor(_classes(array, what))


def _array(values: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except Exception as error:
        raise DataError(f"the {what} set makes no array ({reason(error)}); give tensors or plain arrays") from error


def _check_dense(values: Tensor, what: str) -> None:
    if values.is_meta:
        raise DataError(f"the {what} set is on the device meta and holds no numbers; give its values")
    if values.layout != torch.strided or values.is_quantized:
        kind = "quantised" if values.is_quantized else "sparse"
        raise DataError(f"the {what} set has a tensor that is {kind}; give a dense one")


def _classes(y: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    return check_labels(y.reshape(-1) if y.ndim == 0 else y, f"the {what} set")


def _from_pair(x: Tensor, y: Tensor, what: str) -> TensorExamples:
    x, y = _inputs(x, what), _labels(y, what)
    if x.dim() == 0 or y.dim() == 0:
        raise DataError(f"the {what} set has a single number for x or y; they must be as many rows as labels")
    if x.dim() < 2 and x.numel():
        raise DataError(
            f"x of the {what} set has shape {tuple(x.shape)}; give a row of numbers an example, shape (n, ...)"
        )
    if len(x) != len(y):
        raise DataError(f"the {what} set has {len(x)} inputs and {len(y)} labels; they must be as many")
    if len(x) and not x.numel():
        raise DataError(f"x of the {what} set has shape {tuple(x.shape)} and holds no numbers; give some an example")
    _check_finite(x, what)
    if len(y):
        _classes(y.cpu().numpy(), what)
    return TensorExamples(x, y.long())


def _check_finite(x: Tensor, what: str, start: int = 0) -> None:
    if not x.is_floating_point() or x.numel() == 0:
        return
    for number, rows in enumerate(torch.split(x, 1024) if len(x) else ()):
        bad = (~rows.isfinite()).reshape(len(rows), -1).any(1).nonzero()
        if len(bad):
            row = start + 1024 * number + int(bad[0])
            raise DataError(f"the {what} set has a value that is not finite at item {row}; remove or repair it")


def _from_loader(loader: DataLoader[Any], what: str) -> TensorExamples:
    way = "give its Dataset, or a pair of tensors"
    if loader.drop_last:
        raise InputError(
            f"the {what} DataLoader has drop_last=True, so some examples would be left out without notice; "
            "give it with drop_last=False"
        )
    batches: Any = loader
    count = None
    if not isinstance(loader.dataset, IterableDataset):
        if type(loader).__iter__ is not DataLoader.__iter__:
            raise InputError(f"the {what} DataLoader is a {type(loader).__name__} with an order of its own; {way}")
        count = len(cast(Sized, loader.dataset))
        whole = loader.batch_sampler is None
        given = loader.sampler if whole else (i for batch in cast(Any, loader.batch_sampler) for i in batch)
        try:
            drawn = [int(i) for i in given]
        except (TypeError, ValueError) as error:
            raise InputError(f"the sampler of the {what} DataLoader gives no numbers ({reason(error)})") from error
        if sorted(drawn) != list(range(count)):
            raise InputError(
                f"the {what} DataLoader reads {len(drawn)} rows, {len({*drawn})} different ones, of the {count} of its "
                f"data set, as its sampler leaves some out or repeats them; {way}"
            )
        batches = DataLoader(
            loader.dataset,
            batch_size=None if whole else loader.batch_size or 256,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
        )
        count = None if whole else count
    try:
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


def _from_dataset(dataset: Any, what: str) -> DatasetExamples:
    labels, sums = [], []
    kinds: set[tuple[Any, ...]] = set()
    for i in range(_length(dataset, what)):
        x, label = _item(dataset, i, what)
        kinds.add((tuple(x.shape), x.dtype, tuple(label.shape)))
        if len(kinds) > 1 or x.numel() == 0 or x.dim() == 0:
            other = " and others of other shapes or types" if len(kinds) > 1 else ""
            raise DataError(
                f"item {i} of the {what} set is {tuple(x.shape)}, {x.dtype}{other}; give items of one shape"
            )
        _check_finite(x.unsqueeze(0), what, i)
        labels.append(label)
        sums.append(checksums(x.unsqueeze(0)))
    none = torch.empty(0, dtype=torch.int64)
    y = torch.from_numpy(_classes(torch.stack(labels).numpy(), what)) if labels else none
    return DatasetExamples(dataset, y, torch.device("cpu"), torch.cat(sums) if sums else none)


def _length(dataset: Any, what: str) -> int:
    try:
        return len(dataset)
    except Exception as error:
        raise DataError(f"the {what} set has no length ({reason(error)}); mend its __len__") from error


def _item(dataset: Any, i: int, what: str) -> tuple[Tensor, Tensor]:
    try:
        found = dataset[i]
    except Exception as error:
        raise DataError(f"item {i} of the {what} set cannot be read ({reason(error)}); mend the data set") from error
    return _pair(found, what)


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
    if isinstance(examples, TensorExamples) or len(examples) == 0:
        return examples if isinstance(examples, TensorExamples) else TensorExamples(torch.empty(0), examples.y)
    batches = [examples.take(index) for index in in_order(len(examples), batch_size)]
    return TensorExamples(torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches]))
