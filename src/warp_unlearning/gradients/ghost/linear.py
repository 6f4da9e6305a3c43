"""Linear: with tokens t, ∂ℓ/∂W = Σₜ gₜ aₜᵀ and ∂ℓ/∂b = Σₜ gₜ, for inputs (batch, ..., d) with any axes between."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .contraction import outer_norm
from .one_row import one_row_entry
from .rule import GhostRule, Part, register
from .summand import Entry


@register(nn.Linear)
class LinearRule(GhostRule):
    """Weight and bias of nn.Linear."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, o, d) of the weight, (batch, o) of the bias."""
        return _tokens(g).sum(1) if name == "bias" else _tokens(g).mT @ _tokens(a)

    def squared_norm(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """The weight's by the cheaper contraction."""
        return super().squared_norm(layer, name, a, g) if name == "bias" else outer_norm(_tokens(a), _tokens(g))

    def entry(self, names: Sequence[str], parts: Sequence[Part]) -> Entry | None:
        """Those of weight and bias together where examples have one row."""
        if len(parts) > 1 or parts[0].a.dim() != 2:
            return None
        return one_row_entry(parts[0].a, parts[0].g, weight="weight" in names, bias="bias" in names)


def _tokens(rows: Tensor) -> Tensor:
    """(batch, T, width) of (batch, ..., width)."""
    return rows.reshape(len(rows), -1, rows.shape[-1])
