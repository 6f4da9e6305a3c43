"""nᵢ = ‖∂ℓᵢ/∂W‖² + ‖∂ℓᵢ/∂b‖² of a linear layer that sees one row of each example: ‖g‖²(‖a‖² + 1).

Without the bias the 1 is left out, and without the weight ‖a‖². ∂n/∂a = 2‖g‖²a and ∂n/∂G = 2(‖a‖² + 1)G.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def one_row_norms(a: Tensor, g: Tensor, *, weight: bool, bias: bool) -> Tensor:
    """Shape (n,), of rows a (n, d) and g (n, o), differentiable once in both."""
    return cast(Tensor, _OneRowNorm.apply(a, g, weight, bias))  # type: ignore[no-untyped-call]


class _OneRowNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, weight: bool, bias: bool) -> Tensor:
        ctx.save_for_backward(a, g)
        ctx.weight = weight
        ctx.of_g = _squared_length(g)
        ctx.of_a = _squared_length(a) if weight else torch.zeros_like(ctx.of_g)
        if bias:
            ctx.of_a += 1
        return cast(Tensor, ctx.of_a * ctx.of_g).flatten()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        a, g = ctx.saved_tensors
        twice = (2 * upstream)[:, None]
        wants_a = ctx.needs_input_grad[0] and ctx.weight
        return a * (ctx.of_g * twice) if wants_a else None, g * (ctx.of_a * twice), None, None


def _squared_length(rows: Tensor) -> Tensor:
    """Shape (n, 1)."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return length.square_()
