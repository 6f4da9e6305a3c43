"""Layers of a network computed in the forms of `kernels`, whatever the network, within a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..kernels.convolution import Pair, convolve, has_another_form, seen_taps
from ..kernels.fusing import fusing
from ..kernels.one_pixel_norm import norm_as_vectors, of_one_pixel
from ..kernels.trusted import trusted
from .half_weights import HalfWeights


class SwiftLayers(TorchFunctionMode):
    """Within the block, convolutions, and with `triton` batch norms and max-pools, are computed in forms that suit a
    GPU and small images; what these do not cover is left as it is. Results are the same to rounding.

    Batch norms count their batches together, when the block ends. Used again, it casts weights that layers read in
    half precision together, when the block begins.
    """

    def __init__(self, *, triton: bool) -> None:
        super().__init__()
        # By name: a method that it held would hold it, and the weights it knows, until the cycle is noticed.
        self._own = {F.conv2d: "_convolution", F.linear: "_linear", torch.Tensor.add_: "_count"}
        self._instead: dict[Callable[..., Any], Callable[..., Tensor | None]] = {}
        if triton:
            self._instead = {F.batch_norm: _batch_norm, F.max_pool2d: _max_pool}
        self._counters: dict[int, tuple[Tensor, int]] = {}
        self._fuses = triton
        self._halves = HalfWeights()

    def __enter__(self) -> SwiftLayers:
        """Begin."""
        self._halves.cast()
        self._before = fusing.set(self._fuses)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """The result of the other form, or that of `func` where there is none."""
        kwargs = kwargs or {}
        instead = getattr(self, self._own[func]) if func in self._own else self._instead.get(func)
        found = None if instead is None else instead(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found

    def __exit__(self, *ended: Any) -> None:
        """Count the batches."""
        super().__exit__(*ended)  # type: ignore[no-untyped-call]
        self._halves.let_go()
        fusing.reset(self._before)
        counted, self._counters = self._counters, {}
        if counted:
            counters, batches = zip(*counted.values(), strict=True)
            torch._foreach_add_(list(counters), list(batches))

    def _convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
    ) -> Tensor | None:
        if isinstance(padding, str) or groups != 1 or _pair(dilation) != (1, 1) or x.dim() != 4:
            half = self._halves.of(weight)
            return None if half is None else torch.conv2d(x, half, bias, stride, padding, dilation, groups)
        step, pad = _pair(stride), _pair(padding)
        other = has_another_form(x, weight, stride=step, padding=pad)
        if other and not trusted(x, weight, stride=step, padding=pad):
            half = self._halves.of(weight)
            return None if half is None else torch.conv2d(x, half, bias, step, pad)
        seen = seen_taps(x, weight, stride=step, padding=pad) if other else None
        half = self._halves.of(weight, seen)
        if half is not None and seen is not None:
            return torch.conv2d(x, half, bias, step, seen.padding)
        return convolve(x, weight if half is None else half, bias, stride=step, padding=pad)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        half = self._halves.of(weight)
        return None if half is None else F.linear(x, half, bias)

    def _count(self, counter: Tensor, by: Any, **options: Any) -> Tensor | None:
        # What a batch norm does with its number of batches, in a kernel for each of them.
        if counter.dtype != torch.int64 or counter.dim() or by != 1 or options:
            return None
        # A network that is used several times counts as often, but a tensor may stand in the list only once.
        self._counters[id(counter)] = counter, self._counters.get(id(counter), (counter, 0))[1] + 1
        return counter


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
    from ..kernels import batch_norm as kernel

    if not training:
        return norm_as_vectors(x, running_mean, running_var, weight, bias, eps=eps) if of_one_pixel(x) else None
    if not kernel.suits(x, weight, bias, running_mean, running_var):
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
    from ..kernels import max_pool as kernel

    window = [_pair(given) for given in (size, stride or size, padding)]
    plain = not ceil_mode and not return_indices and _pair(dilation) == (1, 1)
    if not plain or any(a != b for a, b in window) or not kernel.suits(x):
        return None
    return kernel.max_pool(x, size=window[0][0], stride=window[1][0], padding=window[2][0])


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return first, rest[0] if rest else first
