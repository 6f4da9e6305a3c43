"""Rules of layers o = γx̂ + β with x̂ normalised: ∂ℓ/∂γ = Σₜ gₜx̂ₜ and ∂ℓ/∂β = Σₜ gₜ over positions t. `tracing` calls
them by way of the registry in `rules`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .rules import GhostRule, Phase, register


class AffineRule(GhostRule):
    """Scale and shift of a layer that normalises inputs (batch, channels, ...)."""

    @abstractmethod
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """The normalised inputs x̂, in the shape of a."""

    def summed(self, layer: nn.Module, g: Tensor) -> Tensor:
        """Σₜ gₜ over the positions that share a parameter's entry, shape (batch, *parameter)."""
        return _sum_positions(g)

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        return self.summed(layer, g * self.normalised(layer, a) if name == "weight" else g)


@register(nn.GroupNorm)
class GroupNormRule(AffineRule):
    """Normalises within groups of channels."""

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, phase: Phase) -> Tensor:
        """The layer's own. Where a needs no gradient, torch's backward pass crashes if channels run fastest (2.13)."""
        return forward(a if a.requires_grad else a.contiguous())

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        norm = cast(nn.GroupNorm, layer)
        return F.group_norm(a, norm.num_groups, eps=norm.eps)


@register(nn.LayerNorm)
class LayerNormRule(AffineRule):
    """Normalises over the last axes of inputs (batch, ..., *normalised axes)."""

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        norm = cast(nn.LayerNorm, layer)
        return F.layer_norm(a, norm.normalized_shape, eps=norm.eps)

    def summed(self, layer: nn.Module, g: Tensor) -> Tensor:
        return g.reshape(len(g), -1, *cast(nn.LayerNorm, layer).normalized_shape).sum(1)


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormRule(AffineRule):
    """Normalises by running statistics, x̂ = (a − μ)r with r = 1/√(σ² + ε)."""

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, phase: Phase) -> Tensor:
        """The layer's output as γra + (β − γrμ): autograd's second derivative of this costs what the first does."""
        norm = cast(nn.BatchNorm2d, layer)
        if norm.training or norm.running_mean is None or norm.weight is None:
            return forward(a)
        norm._check_input_dim(a)
        mean, scale = norm.running_mean, norm.weight * _inverse_deviation(norm)
        shift = -mean * scale if norm.bias is None else torch.addcmul(norm.bias, mean, scale, value=-1)
        return a * _per_channel(scale, a) + _per_channel(shift, a)

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        norm = cast(nn.BatchNorm2d, layer)
        return F.batch_norm(a, norm.running_mean, norm.running_var, eps=norm.eps)

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """Σ ‖∂ℓᵢ/∂θ‖² over γ and β, those in `names`, in closed form, which needs no memory for x̂."""
        norm = cast(nn.BatchNorm2d, layer)
        scale = _inverse_deviation(norm)
        return cast(Tensor, _SquaredAffineNorm.apply(a, g, norm.running_mean, scale, names))  # type: ignore[no-untyped-call]


class _SquaredAffineNorm(torch.autograd.Function):
    """n = ‖h‖² + ‖k‖² with h = (Σₜ gₜaₜ − μk)r the gradient of the scale and k = Σₜ gₜ that of the shift:
    ∂n/∂a = 2hrG and ∂n/∂G = 2(hr(a − μ) + k).
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, mean: Tensor, r: Tensor, names: Collection[str]) -> Tensor:
        """Compute n = ‖h‖² + ‖k‖² of each example, h or k being 0 where scale or shift is not in `names`."""
        k, products = _sum_positions(g), _sum_positions(a * g)
        h = torch.addcmul(products, k, mean, value=-1).mul_(r) if "weight" in names else torch.zeros_like(products)
        k = k if "bias" in names else torch.zeros_like(k)
        ctx.save_for_backward(a, g, h * r, k, mean)
        return torch.cat((h, k), 1).square().sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        """∂n/∂a = G·2hr and ∂n/∂G = a·2hr + 2(k − hrμ), times `upstream`; hr was saved as `scale` and k as `shift`."""
        a, g, scale, shift, mean = ctx.saved_tensors
        shift = torch.addcmul(shift, scale, mean, value=-1)
        scale, shift = (
            (2 * upstream[:, None] * each).reshape(*a.shape[:2], *[1] * (a.dim() - 2)) for each in (scale, shift)
        )
        return g * scale if ctx.needs_input_grad[0] else None, torch.addcmul(shift, a, scale), None, None, None


def _sum_positions(g: Tensor) -> Tensor:
    """Sums over positions, (batch, channels) of (batch, channels, ...)."""
    return g.flatten(2).sum(2) if g.dim() > 2 else g


def _inverse_deviation(norm: nn.BatchNorm2d) -> Tensor:
    return torch.rsqrt(cast(Tensor, norm.running_var) + norm.eps)


def _per_channel(values: Tensor, a: Tensor) -> Tensor:
    """A value for each channel, in a shape that multiplies a (batch, channels, ...)."""
    return values.reshape(-1, *[1] * (a.dim() - 2))
