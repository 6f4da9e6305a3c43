"""The batch norms of a model, running it for a while in one mode, and what becomes of a batch of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError, nearest
from ..kernels.fusing import fusing
from ..kernels.rectified import rectified
from ..module_tree import modes_of, restore_modes, set_mode

NormMode = Literal["train", "eval"]


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


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """`model(x)`, where a batch of one example, which has no statistics of its own, passes batch norm by the running
    ones even in train mode. Images come in the memory layout of the weights.
    """
    if x.dim() == 4 and _channels_last(model):
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


def norm_relu(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual), as one layer where that is wanted (`kernels.fusing`) and possible."""
    found = _fused(norm, x, residual) if fusing.get() else None
    if found is not None:
        return found
    normed: Tensor = norm(x)
    return rectified(normed if residual is None else normed + residual)


def _fused(norm: nn.Module, x: Tensor, residual: Tensor | None) -> Tensor | None:
    """The same by one kernel; None where the layer is another or watched, or the kernel does not take its tensors."""
    # In Triton, which not every machine has.
    from ..kernels import batch_norm as kernel

    if type(norm) is not nn.BatchNorm2d or not norm.training or norm.momentum is None or _is_watched(norm):
        return None
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    added = residual is None or (residual.dtype, residual.stride()) == (x.dtype, x.stride())
    if not added or not kernel.suits(x, *tensors):
        return None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return kernel.batch_norm(x, *tensors, momentum=norm.momentum, eps=norm.eps, residual=residual, relu=True)  # type: ignore[arg-type]


def _is_watched(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _channels_last(model: nn.Module) -> bool:
    """Whether the filters of the first convolution have their channels last in memory."""
    first = next((p for p in model.parameters() if p.dim() == 4), None)
    return first is not None and not first.is_contiguous() and first.is_contiguous(memory_format=torch.channels_last)


def enter_mode(model: nn.Module, mode: NormMode) -> None:
    """Put the model in `mode`; layers whose own parameters are all frozen stay in eval mode, so that nothing of a
    frozen backbone changes, its running statistics included.
    """
    model.train(mode == "train")
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            module.eval()
