"""sa + t of large images on a GPU, for a number s and t of each channel, with the derivatives of both in one pass.

With u the gradient at the output, ∂/∂s = Σ ua and ∂/∂t = Σ u over images and positions. The gradient at a, b = su, is
differentiated again: for a cotangent v of b, ∂/∂u = sv and ∂/∂s = Σ vu.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor

from .applied import applied
from .once import differentiable_once
from .rule import Passing

# Numbers from which on the passes that are saved take a GPU longer than the nodes of Python, and the launches by them,
# take the host; in a captured graph, which spares the host both, fewer are enough.
LARGE, LARGE_IN_A_GRAPH = 2**23, 2**22
_in_a_graph: ContextVar[bool] = ContextVar("in_a_graph", default=False)


@contextmanager
def for_a_graph() -> Iterator[None]:
    """Within the block, steps are chosen for a graph that is captured, also by calls that come before the capture."""
    before = _in_a_graph.set(True)
    try:
        yield
    finally:
        _in_a_graph.reset(before)


def are_large(a: Tensor) -> bool:
    """Whether images are better scaled so."""
    if not a.is_cuda or a.dim() != 4 or a.dtype != torch.float32:
        return False
    return a.numel() >= least()


def least() -> int:
    """How many numbers large images have, at the moment."""
    return LARGE_IN_A_GRAPH if _in_a_graph.get() else LARGE


def scaled_images(a: Tensor, scale: Tensor, shift: Tensor, passing: Passing) -> Tensor:
    """The images (n, c, h, w), `scale` and `shift` (1, c, 1, 1); while `passing.outputs_only` these get no gradient."""
    return cast(Tensor, applied(_ScaledImages, a, scale, shift, passing))


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
            found = applied(_Scaled, u, scale) if wants_a else None
            return found, None, None, None
        at_scale, at_shift = _sums(u, a) if any(others) else (None, None)
        return u * scale if wants_a else None, at_scale, at_shift, None


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(u, scale)
        return u * scale

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor | None]:
        u, scale = ctx.saved_tensors
        return v * scale, _sums(v, u)[0] if ctx.needs_input_grad[1] else None


def _sums(u: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Σ ua and Σ u, shapes (1, c, 1, 1)."""
    # Only where it is not so already: the block takes as long as an operation.
    if torch.is_grad_enabled():
        with torch.no_grad():
            return _sums(u, a)
    return (u * a).sum((0, 2, 3), keepdim=True), u.sum((0, 2, 3), keepdim=True)
