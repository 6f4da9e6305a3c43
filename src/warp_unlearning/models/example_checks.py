"""Whether a model can take examples, and whether their values and labels are in order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples
from ..errors import DataError, InputError
from .normalisation import norm_mode


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
