"""Batch norm, alone or with the ReLU behind it, by a Triton kernel that suits a GPU and small images."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# True within `FastLayers` if Triton is installed.
_fusing: ContextVar[bool] = ContextVar("fusing", default=False)


class FastLayers(TorchFunctionMode):
    """Within the block, batch norm in train mode is computed by our kernel where that suits its tensors and Triton is
    installed, and `norm_relu` as one layer. Results are the same to rounding.

    The batch counters of all batch norms are raised together when the block ends, by one kernel in place of many.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counters: dict[int, tuple[Tensor, int]] = {}

    def __enter__(self) -> FastLayers:
        """Begin to replace layers."""
        self._before = _fusing.set(_has_triton())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Compute a batch norm by our kernel, put off the rise of a batch counter, or call `func`."""
        kwargs, result = kwargs or {}, None
        if func is F.batch_norm and _fusing.get():
            result = _batch_norm(*args, **kwargs)
        elif func is torch.Tensor.add_:
            result = self._postpone_count(*args, **kwargs)
        return func(*args, **kwargs) if result is None else result

    def __exit__(self, *error: Any) -> None:
        """Stop replacing layers, and raise the batch counters."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _fusing.reset(self._before)
        counted, self._counters = self._counters, {}
        if counted:
            counters, batches = zip(*counted.values(), strict=True)
            torch._foreach_add_(list(counters), list(batches))

    def _postpone_count(self, counter: Tensor, by: Any, **options: Any) -> Tensor | None:
        # Each batch norm adds one to its number of batches, by a kernel of its own.
        if counter.dtype != torch.int64 or counter.dim() or by != 1 or options:
            return None
        # A network that is used several times counts as often, but a tensor may stand in the list only once.
        self._counters[id(counter)] = counter, self._counters.get(id(counter), (counter, 0))[1] + 1
        return counter


def norm_relu(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual), as one layer within `FastLayers` where the kernel takes its tensors."""
    fused = _fused(norm, x, residual) if _fusing.get() else None
    if fused is not None:
        return fused
    output: Tensor = norm(x)
    return F.relu(output if residual is None else output + residual)


def _fused(norm: nn.Module, x: Tensor, residual: Tensor | None) -> Tensor | None:
    from . import batch_norm as kernel  # In Triton, which not every machine has.

    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    if type(norm) is not nn.BatchNorm2d or not norm.training or norm.momentum is None or any(hooks):
        return None
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    residual_fits = residual is None or (residual.dtype, residual.stride()) == (x.dtype, x.stride())
    if not residual_fits or not kernel.suits(x, *tensors):
        return None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return kernel.batch_norm(x, *tensors, momentum=norm.momentum, eps=norm.eps, residual=residual, relu=True)  # type: ignore[arg-type]


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    from . import batch_norm as kernel

    if not training or not kernel.suits(x, weight, bias, running_mean, running_var):
        return None
    return kernel.batch_norm(x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps)  # type: ignore[arg-type]


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
