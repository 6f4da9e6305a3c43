"""Layers in forms that suit a GPU and small images, and weights in half precision, cast together. Captured updates
(`graphs`) run within `FastLayers`; our networks call `norm_relu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Pair = tuple[int, int]

# True within `FastLayers` if Triton is installed.
_fusing: ContextVar[bool] = ContextVar("fusing", default=False)


class FastLayers(TorchFunctionMode):
    """Within the block, layers are computed in forms that suit a GPU and small images; results agree to rounding.

    - Weights that convolutions and linear layers read under autocast are cast together, from the second block on;
      autocast takes a kernel for each, and one more for each gradient.
    - The first convolution of a network whose stem halves the image reads folded images (`_folded`).
    - With Triton, batch norm in train mode, and `norm_relu` as one layer, and max-pools are computed by our kernels.
    - The batch counters of all batch norms are raised together when the block ends.
    """

    def __init__(self) -> None:
        super().__init__()
        # By their ids, batch counters and what they are to be raised by.
        self._counters: dict[int, tuple[Tensor, int]] = {}
        # By their ids, the weights to cast, and their copies with the versions they were made of.
        self._weights: dict[int, nn.Parameter] = {}
        self._halves: dict[int, tuple[Tensor, int]] = {}

    def __enter__(self) -> FastLayers:
        """Begin to replace layers."""
        self._cast_weights()
        self._before = _fusing.set(_has_triton())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Compute a layer in another form, put off the rise of a batch counter, or call `func`."""
        kwargs, result = kwargs or {}, None
        if func is F.conv2d or func is F.linear:
            args = [self._half(value) if isinstance(value, nn.Parameter) else value for value in args]
        if func is F.conv2d and not kwargs:
            result = _folded(*args)
        elif func is F.batch_norm and _fusing.get():
            result = _batch_norm(*args, **kwargs)
        elif func is F.max_pool2d and _fusing.get():
            result = _max_pool(*args, **kwargs)
        elif func is torch.Tensor.add_:
            result = self._postpone_count(*args, **kwargs)
        return func(*args, **kwargs) if result is None else result

    def __exit__(self, *error: Any) -> None:
        """Stop replacing layers, and raise the batch counters."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _fusing.reset(self._before)
        self._halves.clear()
        counted, self._counters = self._counters, {}
        if counted:
            counters, batches = zip(*counted.values(), strict=True)
            torch._foreach_add_(list(counters), list(batches))

    def _half(self, weight: nn.Parameter) -> Tensor:
        """The half-precision copy of `weight`; itself if it has none or has changed, to be cast in the next block."""
        if weight.dtype != torch.float32 or not torch.is_autocast_enabled(weight.device.type):
            return weight
        half, version = self._halves.get(id(weight), (weight, weight._version))
        if half is weight:
            self._weights[id(weight)] = weight
        return half if version == weight._version else weight

    def _cast_weights(self) -> None:
        """Make copies in autocast's type of all weights that blocks so far have asked for."""
        weights = list(self._weights.values())
        if weights and torch.is_autocast_enabled(weights[0].device.type):
            with torch.enable_grad():
                halves = _CastTogether.apply(torch.get_autocast_dtype(weights[0].device.type), *weights)  # type: ignore[no-untyped-call]
            self._halves = {id(w): (half, w._version) for w, half in zip(weights, halves, strict=True)}

    def _postpone_count(self, counter: Tensor, by: Any, **options: Any) -> Tensor | None:
        """Note that a batch norm adds one to its number of batches, to be done at the end; None for any other sum."""
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
    """relu(norm(x) + residual) by our kernel; None where that does not take the layer or its tensors."""
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
    """`F.batch_norm` by our kernel; None in eval mode, and where the kernel does not take the tensors."""
    from . import batch_norm as kernel

    if not training or not kernel.suits(x, weight, bias, running_mean, running_var):
        return None
    return kernel.batch_norm(x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps)  # type: ignore[arg-type]


def _max_pool(
    x: Tensor,
    size: int | Pair,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """`F.max_pool2d` by our kernel; None for windows that it does not know, or tensors that it does not take."""
    from . import max_pool as kernel

    window = [_pair(given) for given in (size, stride or size, padding)]
    plain = not ceil_mode and not return_indices and _pair(dilation) == (1, 1)
    if not plain or any(a != b for a, b in window) or not kernel.suits(x):
        return None
    return kernel.max_pool(x, size=window[0][0], stride=window[1][0], padding=window[2][0])


def _folded(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor | None:
    """A convolution of a large kernel with stride 2 on images of few channels: each square of 2x2 pixels becomes one
    pixel of four times the channels, and so does the kernel, made even with zeros. Matrix units read many channels.
    Returns None for any other convolution.
    """
    few = x.dim() == 4 and x.shape[1] <= 4 and min(weight.shape[2:]) >= 5 and not x.requires_grad
    if not few or isinstance(padding, str) or (_pair(stride), _pair(dilation), groups) != ((2, 2), (1, 1), 1):
        return None
    low, high = [], []
    for size, kernel, pad in zip(x.shape[2:], weight.shape[2:], _pair(padding), strict=True):
        reach = (size + 2 * pad - kernel) // 2 * 2 + kernel + kernel % 2  # Of the windows of the even kernel.
        low.append(pad)
        high.append(reach - size - pad)
    x = F.pad(x.to(weight.dtype), (low[1], high[1], low[0], high[0]))
    weight = F.pad(weight, (0, weight.shape[3] % 2, 0, weight.shape[2] % 2))
    return torch.conv2d(_squares(x), _squares(weight), bias)


def _squares(x: Tensor) -> Tensor:
    """Fold 2x2 pixels in one: (n, c, 2h, 2w) as (n, 4c and zeros up to a multiple of 16, h, w), channels last."""
    n, c, h, w = x.shape
    squares = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).flatten(3)
    return F.pad(squares, (0, -4 * c % 16)).permute(0, 3, 1, 2)


class _CastTogether(torch.autograd.Function):
    """Copies of weights in another precision; gradients reach the weights in theirs, laid out as they are."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        """A copy of each weight, without a gradient for those that need none."""
        ctx.set_materialize_grads(False)
        # Not saved as autograd would, since they change before a second gradient is asked for: only their layout is
        # used.
        ctx.weights = [weight.detach() for weight in weights]
        halves = tuple(torch.empty_like(weight, dtype=dtype) for weight in weights)
        ctx.mark_non_differentiable(
            *[half for half, needed in zip(halves, ctx.needs_input_grad[1:], strict=True) if not needed]
        )
        _copy_together(halves, ctx.weights)
        return halves

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of the copies in the weights' precision and layout."""
        found = [None if s is None else torch.empty_like(w) for s, w in zip(slopes, ctx.weights, strict=True)]
        _copy_together([f for f in found if f is not None], [s for s in slopes if s is not None])
        return None, *found


def _copy_together(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values to targets, those of one layout by one kernel."""
    pairs = list(zip(targets, values, strict=True))
    alike = [pair for pair in pairs if pair[0].stride() == pair[1].stride()]
    if alike:
        torch._foreach_copy_([target for target, _ in alike], [value for _, value in alike])
    for target, value in pairs:
        if target.stride() != value.stride():
            target.copy_(value)


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
