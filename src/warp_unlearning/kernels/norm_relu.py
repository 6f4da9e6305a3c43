"""Batch norm and relu as one layer, where that is wanted (`kernels.fusing`) and possible."""

from __future__ import annotations

from torch import Tensor, nn

from .fusing import fusing
from .rectified import rectified


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
    from . import batch_norm as kernel

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
