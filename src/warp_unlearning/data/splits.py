"""Which training examples are forgotten, retained and held for validation, and which test examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, InputError
from .files import array_digest
from .sampling import draw, draw_per_class

IndexArray = NDArray[np.int64]


@dataclass(frozen=True)
class RandomFraction:
    """Forget a random fraction of the training examples, each class in proportion if `per_class`."""

    fraction: float
    per_class: bool = True


@dataclass(frozen=True, eq=False)
class Indices:
    """Forget the training examples at these positions."""

    array: NDArray[Any]


@dataclass(frozen=True)
class WholeClass:
    """Forget every training example of one class."""

    label: int


ForgetRule = RandomFraction | Indices | WholeClass


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted positions: `forget`, `retain` and `validation` in the training part, `test` in the test part."""

    forget: IndexArray
    retain: IndexArray
    validation: IndexArray
    test: IndexArray

    @property
    def digest(self) -> str:
        """SHA-256 over the four, by which a run names the split it used."""
        return array_digest(self.forget, self.retain, self.validation, self.test)


def make_split(
    labels: NDArray[Any] | Tensor,
    *,
    forget: ForgetRule,
    validation: float = 0.1,
    test_count: int,
    generator: torch.Generator,
) -> Split:
    """Draw the split of training examples with these `labels`.

    `validation` is a fraction of what is not forgotten, each class in proportion; 0 leaves it empty. The
    whole test part, `test_count` examples, is used.
    """
    y = labels.cpu().numpy() if isinstance(labels, Tensor) else labels
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"labels of shape {y.shape} and type {y.dtype} cannot be split; give one whole number a row")
    if not 0 <= validation < 1:
        raise InputError(f"a validation fraction of {validation} cannot be drawn; give 0 or more and less than 1")
    if test_count < 1:
        raise DataError(f"a test part of {test_count} examples measures nothing; give at least one")
    forgotten = _forgotten(y, forget, generator)
    rest = np.setdiff1d(np.arange(len(y), dtype=np.int64), forgotten)
    held = rest[draw_per_class(y[rest], count=round(validation * len(rest)), generator=generator)]
    retain = np.setdiff1d(rest, held)
    if len(retain) == 0:
        raise InputError(
            f"forgetting {len(forgotten)} of {len(y)} examples and holding {len(held)} for validation leaves "
            "none to retain; forget or hold fewer"
        )
    return Split(forget=forgotten, retain=retain, validation=held, test=np.arange(test_count, dtype=np.int64))


def _forgotten(y: NDArray[Any], rule: ForgetRule, generator: torch.Generator) -> IndexArray:
    match rule:
        case RandomFraction(fraction, per_class):
            count = round(fraction * len(y)) if 0 < fraction < 1 else 0
            if count == 0:
                raise InputError(
                    f"a forget fraction of {fraction} of {len(y)} examples is none; choose between 0 and 1"
                )
            if per_class:
                return draw_per_class(y, count=count, generator=generator)
            return draw(np.arange(len(y), dtype=np.int64), count=count, generator=generator)
        case Indices(array):
            return check_indices(array, count=len(y), what="forget")
        case WholeClass(label):
            found = np.flatnonzero(y == label).astype(np.int64)
            if len(found) == 0:
                known = ", ".join(str(k) for k in np.unique(y)[:20])
                raise InputError(f"no training example has label {label}; the labels are {known}")
            return found


def check_indices(index: NDArray[Any], *, count: int | None, what: str) -> IndexArray:
    """`index`, sorted, as int64, if it names distinct examples among `count` (None: any number)."""
    if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
        raise DataError(
            f"the {what} indices have shape {index.shape}, type {index.dtype}; give whole numbers, shape (n,)"
        )
    if len(index) == 0:
        raise DataError(f"the {what} indices are empty; give at least one")
    outside = index[(index < 0) | (index >= (np.iinfo(np.int64).max if count is None else count))]
    if len(outside):
        limit = "it must be 0 or more" if count is None else f"there are {count} examples, numbered from 0"
        raise DataError(f"the {what} index {outside[0]} is out of range; {limit}")
    ordered = np.sort(index)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise DataError(f"the {what} index {repeated[0]} is repeated; name each example once")
    return ordered.astype(np.int64)


def check_disjoint(parts: Mapping[str, NDArray[Any]]) -> None:
    """Raise unless no example is in two of the named `parts`."""
    for (name, index), (other, other_index) in combinations(parts.items(), 2):
        shared = np.intersect1d(index, other_index)
        if len(shared):
            raise DataError(f"{len(shared)} examples are in {name} and in {other}, first {shared[0]}; keep them apart")
