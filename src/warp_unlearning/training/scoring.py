"""Logits of a model on examples, in eval mode, and losses, accuracy, confidence and gradient energy from them.

The confidence in a point's label, φ = log p_y − log Σ_{c≠y} p_c, is close to Gaussian over models. It is computed as
z_y − logsumexp_{c≠y} z_c from logits z, so that no probability is rounded to 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples, in_order
from ..errors import DataError, InputError, WarpError
from ..gradients.energy import total_energy
from ..models.modes import norm_mode
from ..models.own import failed

# Examples of a batch: of tensors in memory, and of data sets that are read batch by batch, whose inputs may be large.
_AT_ONCE, _READ_AT_ONCE = 512, 64
# On a GPU, where launches take longer than small inputs, more of them: up to so many numbers and examples.
_NUMBERS, _MOST_ON_GPUS = 2**24, 4096


@torch.no_grad()
def logits(model: nn.Module, examples: Examples, *, batch_size: int | None = None) -> Tensor:
    """The logits of every example in order, shape (n, classes), with the model in eval mode for the while."""
    size = batch_size or _at_once(examples)
    with norm_mode(model, "eval"):
        return torch.cat([model(x) for x in _inputs(examples, size)])


def checked_logits(model: nn.Module, examples: Examples, what: str, *, classes: int | None = None) -> Tensor:
    """The logits of a user's network on the set `what`, in float64 on the CPU; an error in one line where it fails or
    does not give as many rows, or `classes`, as it should.
    """
    try:
        outputs = logits(model, examples).double().cpu()
    except WarpError:
        raise
    except Exception as error:
        raise failed(error, f"asked for its outputs on the {what} set") from error
    if outputs.dim() != 2 or len(outputs) != len(examples) or outputs.shape[1] != (classes or outputs.shape[1]):
        raise InputError(
            f"the model's output on the {what} set is {tuple(outputs.shape)} for {len(examples)} examples; it must be "
            "as many rows of as many logits, whatever the batch"
        )
    return outputs


def _at_once(examples: Examples) -> int:
    """How many examples to run through a network at once."""
    if not isinstance(examples, TensorExamples) or len(examples) == 0:
        return _READ_AT_ONCE
    most = _MOST_ON_GPUS if examples.x.is_cuda else _AT_ONCE
    return max(1, min(most, _NUMBERS // max(1, examples.x[0].numel())))


def _inputs(examples: Examples, size: int) -> Iterator[Tensor]:
    """The inputs in order, in batches that a network may change in place."""
    if isinstance(examples, TensorExamples):
        yield from (x.clone() for x in torch.split(examples.x, size))
    else:
        yield from (examples.take(i).x for i in in_order(len(examples), size))


def losses(model: nn.Module, examples: Examples) -> Tensor:
    """The cross-entropy of every example, shape (n,)."""
    return F.cross_entropy(logits(model, examples), examples.y, reduction="none")


def accuracy(model: nn.Module, examples: Examples) -> float:
    """The share of examples whose largest logit is at the label."""
    return float((logits(model, examples).argmax(1) == examples.y).double().mean())


def logit_confidence(logits: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """φ = log p_y − log Σ_{c≠y} p_c for every label y (...,), from logits (..., classes).

    Computed in float64 and finite for all finite logits; float32 is enough to store it.

    >>> logit_confidence([[800.0, -800.0]], [0])
    array([1600.])
    """
    values, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    _check_logits(values, truth)
    truth = truth.astype(np.int64)
    label_logits = np.take_along_axis(values, truth[..., None], -1)[..., 0]
    others = values.copy()
    np.put_along_axis(others, truth[..., None], -np.inf, -1)
    largest = others.max(-1)
    log_sum = largest + np.log(np.exp(others - largest[..., None]).sum(-1))
    return np.asarray(label_logits - log_sum, dtype=np.float64)


def _check_logits(values: NDArray[np.float64], truth: NDArray[Any]) -> None:
    """Refuse logits and labels whose shapes or values do not fit each other."""
    if values.ndim < 1 or values.shape[:-1] != truth.shape:
        raise InputError(f"logits of shape {values.shape} and labels of shape {truth.shape}; labels lack the last axis")
    if values.shape[-1] < 2:
        raise InputError(f"{values.shape[-1]} class; confidence against other classes needs at least 2")
    if not np.issubdtype(truth.dtype, np.integer):
        raise InputError(f"labels of type {truth.dtype}; they must be integers")
    if truth.size and not (truth.min() >= 0 and truth.max() < values.shape[-1]):
        raise DataError(
            f"labels from {truth.min()} to {truth.max()} with {values.shape[-1]} classes; find the wrong ones"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{np.count_nonzero(~np.isfinite(values))} logits are not finite; the model has diverged")


def mean_energy(model: nn.Module, examples: Examples, *, batch_size: int = 256) -> float | None:
    """The mean squared norm of the loss gradient over the examples, or None where it cannot be measured."""
    total = 0.0
    with norm_mode(model, "eval"):
        for index in in_order(len(examples), batch_size):
            energy = total_energy(model, *examples.take(index))
            if energy is None:
                return None
            total += energy
    return total / len(examples)
