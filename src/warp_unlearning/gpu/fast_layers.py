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

# True within `FastLayers` where Triton is there.
_fusing: ContextVar[bool] = ContextVar("fusing", default=False)


class FastLayers(TorchFunctionMode):
    """Within the block, batch norm in train mode is computed by our kernel where that suits its tensors and Triton is
    there, and `norm_relu` as one layer. Results are the same to rounding.

    Batch norms count their batches together, when the block ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counters: dict[int, tuple[Tensor, int]] = {}

    def __enter__(self) -> FastLayers:
        """Begin."""
        self._before = _fusing.set(_triton_is_there())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """The result of `func`, computed in another way where there is one."""
        kwargs, found = kwargs or {}, None
        if func is F.batch_norm and _fusing.get():
            found = _batch_norm(*args, **kwargs)
        elif func is torch.Tensor.add_:
            found = self._count(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found

    def __exit__(self, *ended: Any) -> None:
        """Count the batches."""
        super().__exit__(*ended)  # type: ignore[no-untyped-call]
        _fusing.reset(self._before)
        counted, self._counters = self._counters, {}
        if counted:
            counters, batches = zip(*counted.values(), strict=True)
            torch._foreach_add_(list(counters), list(batches))

    def _count(self, counter: Tensor, by: Any, **options: Any) -> Tensor | None:
        # Each batch norm adds one to its number of batches, by a kernel of its own.
        if counter.dtype != torch.int64 or counter.dim() or by != 1 or options:
            return None
        # A network that is used several times counts as often, but a tensor may stand in the list only once.
        self._counters[id(counter)] = counter, self._counters.get(id(counter), (counter, 0))[1] + 1
        return counter


def norm_relu(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual), as one layer within `FastLayers` where the kernel takes its tensors."""
    found = _fused(norm, x, residual) if _fusing.get() else None
    if found is not None:
        return found
    normed: Tensor = norm(x)
    return F.relu(normed if residual is None else normed + residual)


def _fused(norm: nn.Module, x: Tensor, residual: Tensor | None) -> Tensor | None:
    from . import batch_norm as kernel  # In Triton, which not every machine has.

    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    if type(norm) is not nn.BatchNorm2d or not norm.training or norm.momentum is None or any(hooks):
        return None
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    added = residual is None or (residual.dtype, residual.stride()) == (x.dtype, x.stride())
    if not added or not kernel.suits(x, *tensors):
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
def _triton_is_there() -> bool:
    return find_spec("triton") is not None
