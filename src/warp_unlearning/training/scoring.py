"""What a model says about examples: logits in eval mode, losses and accuracy from them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, in_order
from ..models.normalisation import norm_mode


@torch.no_grad()
def logits(model: nn.Module, examples: Examples, *, batch_size: int = 512) -> Tensor:
    """The logits of every example in order, shape (n, classes), with the model in eval mode for the while."""
    with norm_mode(model, "eval"):
        return torch.cat([model(examples.take(i).x) for i in in_order(len(examples), batch_size)])


def losses(model: nn.Module, examples: Examples) -> Tensor:
    """The cross-entropy of every example, shape (n,)."""
    return F.cross_entropy(logits(model, examples), examples.y, reduction="none")


def accuracy(model: nn.Module, examples: Examples) -> float:
    """The share of examples whose largest logit is at the label."""
    return float((logits(model, examples).argmax(1) == examples.y).double().mean())
