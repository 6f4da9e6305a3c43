"""Layers o = γx̂ + β with x̂ normalised: ∂ℓ/∂γ = Σₜ gₜx̂ₜ and ∂ℓ/∂β = Σₜ gₜ over the positions t that share them."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from .rule import GhostRule


class AffineRule(GhostRule):
    """Scale and shift of a layer that normalises."""

    @abstractmethod
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""

    def summed(self, layer: nn.Module, g: Tensor) -> Tensor:
        """Σₜ gₜ, shape (batch, channels) unless the layer has others."""
        return g.reshape(*g.shape[:2], -1).sum(-1)

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, *parameter)."""
        return self.summed(layer, g * self.normalised(layer, a) if name == "weight" else g)
