"""The batch norms of a model, and running it for a while in one mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError, nearest

NormMode = Literal["train", "eval"]


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Every batch norm of `model`, in the order the model names them."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def norm_mode(model: nn.Module, mode: NormMode) -> Iterator[None]:
    """Put the whole model in `mode` within the block, then each module back in the mode it had."""
    if mode not in get_args(NormMode):
        raise InputError(f"mode is {mode!r}; {nearest(str(mode), get_args(NormMode))}")
    before = [(module, module.training) for module in model.modules()]
    try:
        model.train(mode == "train")
        yield
    finally:
        for module, training in before:
            module.training = training
