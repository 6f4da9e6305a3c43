"""Copies of weights in half precision, all made at once.

Autocast casts the weights of one layer after another, and their gradients back likewise: two small kernels a layer.
Here all are cast together before the layers are computed, and all gradients together once the last of them is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class HalfWeights:
    """The weights that layers asked for are cast together from the second time on. Gradients reach the weights
    themselves, in float32 and laid out as they are.
    """

    def __init__(self) -> None:
        self._known: dict[int, Tensor] = {}
        self._halves: dict[int, tuple[Tensor, int]] = {}

    def cast(self) -> None:
        """Cast all that are known, where the precision of the moment is half."""
        weights = list(self._known.values())
        if not weights or not _is_half(weights[0]):
            return
        dtype = torch.get_autocast_dtype(weights[0].device.type)
        learned, frozen = [w for w in weights if w.requires_grad], [w for w in weights if not w.requires_grad]
        with torch.enable_grad():
            halves = [*_Cast.apply(dtype, *learned)] if learned else []  # type: ignore[no-untyped-call]
        halves += _cast(frozen, dtype)
        self._halves = {id(w): (h, w._version) for w, h in zip(learned + frozen, halves, strict=True)}

    def of(self, weight: Tensor) -> Tensor:
        """The copy of `weight`; `weight` itself where there is none, or where it has changed since."""
        half, version = self._halves.get(id(weight), (weight, -1))
        if version == weight._version:
            return half
        if isinstance(weight, nn.Parameter) and weight.dtype == torch.float32 and _is_half(weight):
            self._known[id(weight)] = weight
        return weight

    def let_go(self) -> None:
        """Forget the copies, not which there were."""
        self._halves.clear()


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        # Not saved as autograd would: they change before a second gradient is asked for, and only their layout is used.
        ctx.weights = [weight.detach() for weight in weights]
        return tuple(_cast(weights, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [None if s is None else torch.empty_like(w) for s, w in zip(slopes, ctx.weights, strict=True)]
        pairs = [(a, b) for a, b in zip(found, slopes, strict=True) if a is not None and b is not None]
        _copy_all([p for p in pairs if p[0].stride() == p[1].stride()])
        for to, slope in (p for p in pairs if p[0].stride() != p[1].stride()):
            to.copy_(slope)
        return None, *found


def _cast(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    halves = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    _copy_all([(h, w.detach()) for h, w in zip(halves, weights, strict=True)])
    return halves


def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def _is_half(weight: Tensor) -> bool:
    return torch.is_autocast_enabled(weight.device.type)
