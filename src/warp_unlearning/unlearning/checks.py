"""Everything that can be wrong with a model and its examples, checked before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from ..data.checksum import checksums
from ..data.examples import DatasetExamples, Examples, TensorExamples
from ..errors import DataError, InputError
from ..models.normalisation import norm_mode


def check_examples(model: nn.Module, sets: dict[str, Examples]) -> int:
    """The number of classes of the model, if every set is non-empty, finite, of one shape, and labelled within the
    classes.
    """
    classes = 0
    seen: set[tuple[object, ...]] = set()
    for what, examples in sets.items():
        if len(examples) == 0:
            raise DataError(f"the {what} set is empty; give at least one example")
        if isinstance(examples, TensorExamples):
            _check_tensors(examples, what)
        x = examples.take(torch.arange(min(2, len(examples)))).x
        # A model that takes one example takes every other of that shape and type.
        if (x.shape[1:], x.dtype) not in seen:
            classes = _check_output(model, x, what)
            seen.add((x.shape[1:], x.dtype))
        outside = (examples.y < 0) | (examples.y >= classes)
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            raise DataError(
                f"the {what} set has the label {int(examples.y[row])} at row {row}, but the model has {classes} "
                f"classes (0 to {classes - 1}); remove the row or use a model with that class"
            )
    return classes


def _check_tensors(examples: TensorExamples, what: str) -> None:
    for first, part in enumerate(torch.split(examples.x, 4096)):
        finite = part.flatten(1).isfinite().all(1)
        if not bool(finite.all()):
            row = first * 4096 + int((~finite).nonzero()[0])
            raise DataError(
                f"the {what} set has a value that is not finite (NaN or infinite) at row {row}; remove or repair it"
            )


@torch.no_grad()
def _check_output(model: nn.Module, x: Tensor, what: str) -> int:
    try:
        with norm_mode(model, "eval"):
            output = model(x)
    except Exception as error:
        reason = str(error).split("\n", 1)[0]
        raise DataError(
            f"the model cannot take an example of the {what} set, "
            f"of shape {tuple(x.shape[1:])} and type {x.dtype}: {reason}"
        ) from error
    if not isinstance(output, Tensor) or output.dim() != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"the model's output is {shape}; it must be a tensor of logits, shape (batch, classes)")
    if not bool(output.isfinite().all()):
        raise InputError(
            f"the model's output on the {what} set is not finite; its weights are damaged or it diverged in training"
        )
    return output.shape[1]


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
