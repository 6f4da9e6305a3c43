"""Train and eval mode, batch norms, what draws random numbers, devices and full precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError, nearest
from ..module_tree import modes_of, restore_modes, set_mode
from ..waiting import keeping_turn

NormMode = Literal["train", "eval"]
_QUIET = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.Flatten, nn.Identity, nn.Sequential, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)
_OURS = tuple(f"{__name__.rpartition('.')[0]}.{name}" for name in ("networks", "generator"))


def draws_nothing(model: nn.Module) -> bool:
    """Whether every module is one of a few layers without randomness, or a network of this package, whose own code has
    none outside its layers. Of any other module it is not known.
    """
    return all(type(module) in _QUIET or type(module).__module__ in _OURS for module in model.modules())


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Every batch norm of `model`, in the order the model names them."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def norm_mode(model: nn.Module, mode: NormMode) -> Iterator[None]:
    """Put the whole model in `mode` within the block, then each module back in the mode it had."""
    if mode not in get_args(NormMode):
        raise InputError(f"mode is {mode!r}; {nearest(str(mode), get_args(NormMode))}")
    before = modes_of(model)
    try:
        set_mode(model, training=mode == "train")
        yield
    finally:
        restore_modes(before)


def enter_mode(model: nn.Module, mode: NormMode) -> None:
    """Put the model in `mode`; layers whose own parameters are all frozen stay in eval mode, so that nothing of a
    frozen backbone changes, its running statistics included.
    """
    model.train(mode == "train")
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            module.eval()


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """`model(x)`, where a batch of one example, which has no statistics of its own, passes batch norm by the running
    ones even in train mode. Images come in the memory layout of the weights.
    """
    filters = next((p for p in model.parameters() if p.dim() == 4), None) if x.dim() == 4 else None
    if filters is not None and not filters.is_contiguous() and filters.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous(memory_format=torch.channels_last)
    waiting = [norm for norm in batch_norms(model) if norm.training] if len(x) == 1 else []
    for norm in waiting:
        norm.eval()
    try:
        output: Tensor = model(x)
    finally:
        for norm in waiting:
            norm.train()
    return output


def choose_device(name: str) -> torch.device:
    """The device called `name`, if it can be used; "auto" is the first GPU, or the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        # In one line torch may go on with all of its backends.
        reason = str(error).splitlines()[0].split(". ", 1)[0].rstrip(".")
        raise InputError(f"the device {name!r} cannot be used: {reason}; try auto or cpu") from error
    return device


@contextmanager
def full_precision() -> Iterator[None]:
    """Within the block nothing is rounded to TF32, whose 10 bits are too coarse to see whether a function was kept.

    The switches are the process's: no thread has its own.
    """
    switches = [torch.backends.cudnn.conv, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        with keeping_turn():
            yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
