"""A batch norm in eval mode, o = (a − μ)rγ + β, whose second derivative costs what its first does.

The gradient at a, b = γrG, is linear in G and in γ, so for a cotangent u of b: ∂/∂G = γru and ∂/∂γ = rΣₜ uₜgₜ, which is
what the layer has as gradients where its input is G and the mean 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from .applied import applied
from .batch_statistics import BatchStatistics
from .once import differentiable_once
from .rule import Passing


def normalised_twice(
    a: Tensor, weight: Tensor, bias: Tensor | None, statistics: BatchStatistics, passing: Passing
) -> Tensor:
    """The output for a (batch, channels, ...); while `passing.outputs_only`, γ and β are given no gradient."""
    return cast(Tensor, applied(_Normalised, a, weight, bias, statistics, passing))


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None, statistics: BatchStatistics, passing: Passing
    ) -> Tensor:
        ctx.save_for_backward(a, weight)
        ctx.statistics, ctx.passing = statistics, passing
        return F.batch_norm(a, statistics.mean, statistics.variance, weight, bias, eps=statistics.eps)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        a, weight = ctx.saved_tensors
        if not ctx.passing.outputs_only:
            found = _gradients(g, a, weight, ctx.statistics, ctx.statistics.mean, ctx.needs_input_grad[:3])
            return *found, None, None
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return applied(_Scaled, g, weight, ctx.statistics), None, None, None, None


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, weight: Tensor, statistics: BatchStatistics) -> Tensor:
        ctx.save_for_backward(g, weight)
        ctx.statistics = statistics
        return _times(g, statistics.scale)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        g, weight = ctx.saved_tensors
        no_mean = _zeros(weight.shape[0], weight.dtype, weight.device)
        found = _gradients(u, g, weight, ctx.statistics, no_mean, (True, ctx.needs_input_grad[1], False))
        return *found[:2], None


@lru_cache(maxsize=64)
def _zeros(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=dtype, device=device)


def _gradients(
    g: Tensor, a: Tensor, weight: Tensor, statistics: BatchStatistics, mean: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """At a, γ and β, where g is the gradient at the output and `mean` stands for μ."""
    # Not by the operation below, which on a GPU returns another layout than it is given.
    at_a = _times(g, statistics.scale) if wanted[0] else None
    if not any(wanted[1:]):
        return at_a, None, None
    _, *others = torch.ops.aten.native_batch_norm_backward.default(
        g, a, weight, mean, statistics.variance, mean, statistics.r, False, statistics.eps, (False, *wanted[1:])
    )
    return at_a, *cast("tuple[Tensor | None, Tensor | None]", tuple(others))


def _times(g: Tensor, scale: Tensor) -> Tensor:
    """Every channel of g times its number in `scale`."""
    return g * scale.reshape(-1, *[1] * (g.dim() - 2))
