"""What a model says about examples: logits in eval mode, losses and accuracy from them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples, in_order
from ..models.modes import norm_mode

_AT_ONCE = 512
# Small inputs are better asked many at a time on a GPU, where asking takes longer than answering; numbers of a batch.
_NUMBERS_ON_GPUS, _MOST_ON_GPUS = 2**24, 4096


@torch.no_grad()
def logits(model: nn.Module, examples: Examples, *, batch_size: int | None = None) -> Tensor:
    """The logits of every example in order, shape (n, classes), with the model in eval mode for the while."""
    size = batch_size or _at_once(examples)
    with norm_mode(model, "eval"):
        return torch.cat([model(x) for x in _inputs(examples, size)])


def _at_once(examples: Examples) -> int:
    if not isinstance(examples, TensorExamples) or not examples.x.is_cuda or len(examples) == 0:
        return _AT_ONCE
    return max(1, min(_MOST_ON_GPUS, _NUMBERS_ON_GPUS // max(1, examples.x[0].numel())))


def _inputs(examples: Examples, size: int) -> Iterator[Tensor]:
    if isinstance(examples, TensorExamples):
        # Copies: a network may change its inputs in place.
        yield from (x.clone() for x in torch.split(examples.x, size))
    else:
        yield from (examples.take(i).x for i in in_order(len(examples), size))


def losses(model: nn.Module, examples: Examples) -> Tensor:
    """The cross-entropy of every example, shape (n,)."""
    return F.cross_entropy(logits(model, examples), examples.y, reduction="none")


def accuracy(model: nn.Module, examples: Examples) -> float:
    """The share of examples whose largest logit is at the label."""
    return float((logits(model, examples).argmax(1) == examples.y).double().mean())
