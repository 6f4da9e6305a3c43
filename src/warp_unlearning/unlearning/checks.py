"""Everything that can be wrong with a model and its examples, checked before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

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
    if not examples.x.is_floating_point():
        raise DataError(f"the inputs of the {what} set are {examples.x.dtype}; give floating-point tensors")
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
    """An error where an example is to be both forgotten and kept: by index in parts of one data set, by content in
    tensors.
    """
    if isinstance(forget, TensorExamples) and isinstance(retain, TensorExamples):
        copies = copies_of(forget, retain)
        if len(copies):
            raise DataError(
                f"{len(copies)} examples of the retain set are also in the forget set (first: retain row "
                f"{int(copies[0])}); what is to be forgotten cannot be kept: remove them from the retain set"
            )
    if isinstance(forget, DatasetExamples) and isinstance(retain, DatasetExamples):
        shared = _shared_indices(forget.dataset, retain.dataset)
        if shared:
            raise DataError(
                f"{len(shared)} indices are in both the forget and the retain set (first: {min(shared)}); "
                "remove them from the retain set"
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


def copies_of(forget: TensorExamples, retain: TensorExamples) -> Tensor:
    """The rows of `retain` whose input and label are exactly those of some row of `forget`, ascending.

    Rows are first compared by a checksum in wrapping integer arithmetic, which does not depend on the order of
    summation, and those that agree then entry by entry.
    """
    if forget.x.shape[1:] != retain.x.shape[1:] or forget.x.dtype != retain.x.dtype:
        return torch.empty(0, dtype=torch.int64)
    forget_sums, retain_sums = _checksums(forget.x), _checksums(retain.x)
    rows = torch.isin(retain_sums, forget_sums).nonzero().flatten()
    by_sum: dict[int, list[int]] = {}
    for i, value in enumerate(forget_sums.tolist()):
        by_sum.setdefault(value, []).append(i)
    found = [
        row
        for row in rows.tolist()
        if any(
            bool(forget.y[i] == retain.y[row]) and torch.equal(forget.x[i], retain.x[row])
            for i in by_sum[int(retain_sums[row])]
        )
    ]
    return torch.tensor(found, dtype=torch.int64)


def _checksums(x: Tensor) -> Tensor:
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    width = x[0].numel()
    weights = torch.randint(-(2**62), 2**62, (width,), generator=torch.Generator().manual_seed(1)).to(x.device)
    parts = [(part.flatten(1).contiguous().view(integers).long() * weights).sum(1) for part in torch.split(x, 1024)]
    return torch.cat(parts)
