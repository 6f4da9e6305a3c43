"""Copies of weights in half precision, all made at once.

Autocast casts the weights of one layer after another, and their gradients back likewise: two small kernels a layer.
Here all are cast together before the layers are computed, and all gradients together once the last of them is known.
Of kernels whose outer taps see only padding, the others alone are cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..kernels.convolution import Seen, cut, uncut

Wanted = tuple[Tensor, Seen | None]


class HalfWeights:
    """The weights that layers asked for are cast together from the second time on. Gradients reach the weights
    themselves, in float32 and laid out as they are.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, Seen | None], Wanted] = {}
        self._halves: dict[tuple[int, Seen | None], tuple[Tensor, int]] = {}

    def cast(self) -> None:
        """Cast all that are known, where the precision of the moment is half."""
        wanted = list(self._known.values())
        if not wanted or not _is_half(wanted[0][0]):
            return
        dtype = torch.get_autocast_dtype(wanted[0][0].device.type)
        learned, frozen = ([(w, s) for w, s in wanted if w.requires_grad == needed] for needed in (True, False))
        with torch.enable_grad():
            seen, weights = [s for _, s in learned], [w for w, _ in learned]
            halves = [*_Cast.apply(dtype, seen, *weights)] if learned else []  # type: ignore[no-untyped-call]
        halves += _cast(frozen, dtype)
        self._halves = {(id(w), s): (h, w._version) for (w, s), h in zip(learned + frozen, halves, strict=True)}

    def of(self, weight: Tensor, seen: Seen | None = None) -> Tensor | None:
        """The copy of `weight`, or of its taps that are `seen`; None where there is none, or where it has changed."""
        half, version = self._halves.get((id(weight), seen), (None, -1))
        if version == weight._version:
            return half
        if isinstance(weight, nn.Parameter) and weight.dtype == torch.float32 and _is_half(weight):
            self._known[id(weight), seen] = weight, seen
        return None

    def let_go(self) -> None:
        """Forget the copies, not which there were."""
        self._halves.clear()


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, seen: Sequence[Seen | None], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        # Not saved as autograd would: they change before a second gradient is asked for, and only their layout is used.
        ctx.wanted = [(weight.detach(), s) for weight, s in zip(weights, seen, strict=True)]
        return tuple(_cast(ctx.wanted, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        pairs = []
        for slope, (weight, seen) in zip(slopes, ctx.wanted, strict=True):
            if slope is None:
                found.append(None)
            elif seen is not None:
                found.append(uncut(slope, weight, seen))
            else:
                whole = torch.empty_like(weight)
                found.append(whole)
                pairs.append((whole, slope))
        _copy_all(pairs)
        return None, None, *found


def _cast(wanted: Sequence[Wanted], dtype: torch.dtype) -> list[Tensor]:
    halves: list[Tensor] = []
    pairs = []
    for weight, seen in wanted:
        half = torch.empty_like(weight, dtype=dtype) if seen is None else cut(weight.detach(), seen, dtype)
        halves.append(half)
        if seen is None:
            pairs.append((half, weight.detach()))
    _copy_all(pairs)
    return halves


def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each into the first: those of one layout in one go."""
    alike = [(to, given) for to, given in pairs if to.stride() == given.stride()]
    if alike:
        torch._foreach_copy_([to for to, _ in alike], [given for _, given in alike])
    for to, given in pairs:
        if to.stride() != given.stride():
            to.copy_(given)


def _is_half(weight: Tensor) -> bool:
    return torch.is_autocast_enabled(weight.device.type)
