"""sa + t of large images on a GPU, for a number s and t of each channel, with the derivatives of both in one pass.

With u the gradient at the output, ∂/∂s = Σ ua and ∂/∂t = Σ u over images and positions. The gradient at a, b = su, is
differentiated again: for a cotangent v of b, ∂/∂u = sv and ∂/∂s = Σ vu.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...kernels.availability import triton_is_there
from .rule import Passing

# Numbers from which on the passes that are saved take a GPU about as long as the nodes of Python, and the launches by
# them, take the host; below, images may even stay in a GPU's cache between passes.
LARGE = 2**23


def are_large(a: Tensor) -> bool:
    """Whether images are better scaled so."""
    return a.is_cuda and a.dim() == 4 and a.numel() >= LARGE and a.dtype == torch.float32 and triton_is_there()


def scaled_images(a: Tensor, scale: Tensor, shift: Tensor, passing: Passing) -> Tensor:
    """The images (n, c, h, w), `scale` and `shift` (c, 1, 1); while `passing.outputs_only` these get no gradient."""
    return cast(Tensor, _ScaledImages.apply(a, scale, shift, passing))  # type: ignore[no-untyped-call]


class _ScaledImages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, scale: Tensor, shift: Tensor, passing: Passing) -> Tensor:
        ctx.save_for_backward(a, scale)
        ctx.passing = passing
        return torch.addcmul(shift, a, scale)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        a, scale = ctx.saved_tensors
        wants_a, *others = ctx.needs_input_grad[:3]
        if ctx.passing.outputs_only:
            found = _Scaled.apply(u, scale) if wants_a else None  # type: ignore[no-untyped-call]
            return found, None, None, None
        at_scale, at_shift = _sums(u, a, scale) if any(others) else (None, None)
        return u * scale if wants_a else None, at_scale, at_shift, None


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(u, scale)
        return u * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor | None]:
        u, scale = ctx.saved_tensors
        return v * scale, _sums(v, u, scale)[0] if ctx.needs_input_grad[1] else None


def _sums(u: Tensor, a: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Σ ua and Σ u, shapes of `scale`."""
    # Needs Triton, which is not everywhere.
    from ...kernels.column_products import column_products, suits

    with torch.no_grad():
        u, a = (x.contiguous(memory_format=torch.channels_last) for x in (u, a))
        if suits(u, a):
            return column_products(u, a, axes=2)
        return (u * a).sum((0, 2, 3)).view(scale.shape), u.sum((0, 2, 3)).view(scale.shape)
