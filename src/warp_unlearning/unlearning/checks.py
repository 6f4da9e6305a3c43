"""Everything that can be wrong with a model and its examples, checked before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import Subset

from ..data.examples import DatasetExamples, Examples, TensorExamples, checksums
from ..errors import DataError
from ..models.own import check_examples as check_examples


def check_disjoint(forget: Examples, retain: Examples) -> None:
    """An error where an example is to be both forgotten and kept: by content, and in parts of one data set by index,
    since a data set that augments may never give the same content twice.
    """
    if isinstance(forget, DatasetExamples) and isinstance(retain, DatasetExamples):
        shared = _shared_indices(forget.dataset, retain.dataset)
        if shared:
            raise DataError(
                f"{len(shared)} indices are in both the forget and the retain set (first: {min(shared)}); "
                "remove them from the retain set"
            )
    copies = copies_of(forget, retain)
    if len(copies):
        raise DataError(
            f"{len(copies)} examples of the retain set are also in the forget set (first: retain row "
            f"{int(copies[0])}); what is to be forgotten cannot be kept: remove them from the retain set"
        )


def _shared_indices(forget: object, retain: object) -> set[int]:
    (forget_whole, forget_index), (retain_whole, retain_index) = _part_of(forget), _part_of(retain)
    return set(forget_index) & set(retain_index) if forget_whole is retain_whole else set()


def _part_of(dataset: object) -> tuple[object, Sequence[int]]:
    """The data set that all `Subset`s around it are parts of, and the indices of the part."""
    if not isinstance(dataset, Subset):
        return dataset, range(len(cast("list[object]", dataset)))
    whole, index = _part_of(dataset.dataset)
    return whole, [index[int(i)] for i in dataset.indices]


def copies_of(forget: Examples, retain: Examples) -> Tensor:
    """The rows of `retain` whose input and label are those of some row of `forget`, ascending.

    Compared by label and by a 64-bit checksum of the bits of the input; two different inputs agree in it by chance once
    in 10¹⁹ pairs. Examples of another kind than tensors or a data set have no checksums and no copies.
    """
    sums = [_checksums_of(examples) for examples in (forget, retain)]
    if sums[0] is None or sums[1] is None:
        return torch.empty(0, dtype=torch.int64)
    known = set(zip(sums[0].tolist(), forget.y.tolist(), strict=True))
    pairs = zip(sums[1].tolist(), retain.y.tolist(), strict=True)
    return torch.tensor([row for row, pair in enumerate(pairs) if pair in known], dtype=torch.int64)


def _checksums_of(examples: Examples) -> Tensor | None:
    if isinstance(examples, TensorExamples):
        return checksums(examples.x)
    return examples.checksums if isinstance(examples, DatasetExamples) else None
