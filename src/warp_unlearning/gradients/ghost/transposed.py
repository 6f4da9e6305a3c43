"""A convolution o = a * W as in `twice`, where launching steps is what takes time.

The gradient at a, b = G *ᵀ W, is torch's own transposed convolution. It is differentiated once, by the steps that
`twice` takes, which torch begins without an interpreter.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .applied import applied
from .convolve import convolution_gradients, convolve, transposed_convolve
from .geometry import Geometry
from .rule import Passing


def suits_transposing(device: torch.device, geometry: Geometry) -> bool:
    """Whether convolutions are better taken so. A GPU's own ways with groups are not for transposed ones."""
    return device.type != "cpu" and geometry.groups == 1


def convolved_by_transposing(
    a: Tensor, kernel: Tensor, geometry: Geometry, passing: Passing, again: Tensor | None = None
) -> Tensor:
    """Images (batch, channels, height, width) convolved; while `passing.outputs_only`, W is given no gradient.

    `again` is W once more: what is differentiated again depends on it where it is given.
    """
    return cast(Tensor, applied(_Convolution, a, kernel, _Constants(geometry, passing, again)))


class _Constants(NamedTuple):
    """What the convolution itself is given no gradient of; as a part of this, autograd takes no notice of a tensor."""

    geometry: Geometry
    passing: Passing
    again: Tensor | None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, kernel: Tensor, constants: _Constants) -> Tensor:
        ctx.geometry, ctx.passing, again = constants
        # The numbers of both are the same, and what is kept takes time in every pass.
        ctx.save_for_backward(a, kernel if again is None else again)
        return convolve(a, kernel, constants.geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, kernel = ctx.saved_tensors
        at_a, at_kernel, _ = ctx.needs_input_grad
        if ctx.passing.outputs_only:
            return transposed_convolve(g, kernel, a.shape, ctx.geometry) if at_a else None, None, None
        return *convolution_gradients(g, a, kernel, ctx.geometry, at_a=at_a, at_kernel=at_kernel), None
