"""Ghost norms: squared norms of per-example parameter gradients from what enters and leaves a layer.

A rule belongs to a layer type. It takes the layer, its input a (batch, ...) and G = ∂Σᵢℓᵢ/∂(output) (batch, ...), where
row i of both belongs to example i alone. Whatever it returns is differentiable once in a and G.

Here are the registry and the rules of Linear and Embedding; `rules_norm` and `rules_conv` have the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import InputError


@dataclass
class Phase:
    """`outputs_only` is True while a backward pass needs gradients at layer outputs and of no parameter."""

    outputs_only: bool = False


class GhostRule(ABC):
    """The per-example gradients of one layer type, their squared norms, and their products with given directions.

    `names` are the layer's parameters that the rule covers, by attribute. In all methods a is the layer's input and
    g = ∂Σᵢℓᵢ/∂(output); both have one row for each example.
    """

    names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, phase: Phase) -> Tensor:
        """The layer's output; a rule may compute it in a way that is cheaper to differentiate twice."""
        return forward(a)

    @abstractmethod
    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """∂ℓᵢ/∂θ for the layer's parameter `name`, shape (batch, *parameter)."""

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """Σ ‖∂ℓᵢ/∂θ‖² over the layer's parameters `names`, of which there is at least one; shape (batch,)."""
        norms = [self.gradient(layer, name, a, g).flatten(1).square().sum(1) for name in names]
        return torch.stack(norms).sum(0)

    def alignment(self, layer: nn.Module, name: str, a: Tensor, g: Tensor, direction: Tensor) -> Tensor:
        """⟨∂ℓᵢ/∂θ, Tᵢ⟩ for directions T (batch, *parameter), shape (batch,)."""
        return (self.gradient(layer, name, a, g) * direction).flatten(1).sum(1)


RuleClass = TypeVar("RuleClass", bound=type[GhostRule])

_RULES: dict[type[nn.Module], GhostRule] = {}


def register(*layers: type[nn.Module]) -> Callable[[RuleClass], RuleClass]:
    """Register the decorated rule for these layer types, none of which may have one already."""

    def add(rule: RuleClass) -> RuleClass:
        """Enter one object of the class under each layer type."""
        for layer in layers:
            if layer in _RULES:
                raise InputError(
                    f"{layer.__name__} already has the rule {type(_RULES[layer]).__name__}; "
                    f"register {rule.__name__} for a subclass of it"
                )
        _RULES.update({layer: rule() for layer in layers})
        return rule

    return add


def rule_of(layer: nn.Module) -> GhostRule | None:
    """The rule that computes per-example gradients, and norms of them, for the layer's type; None where there is none,
    or where the layer has a forward pass of its own, which no rule fits.
    """
    known = next((kind for kind in type(layer).__mro__ if kind in _RULES), None)
    if known is None:
        return None
    for name in ("forward", "_conv_forward"):
        if name in vars(layer) or getattr(type(layer), name, None) is not getattr(known, name, None):
            return None
    return _RULES[known]


class _SquaredOuterNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, g: Tensor) -> Tensor:
        """‖Σₜ gₜ pₜᵀ‖² by inner products of positions, Σ K·Γ, or by the sum itself, ‖GᵀP‖²."""
        ctx.save_for_backward(p, g)
        if _gram_is_cheaper(p, g):
            return (torch.bmm(p, p.mT) * torch.bmm(g, g.mT)).sum((1, 2))
        return torch.bmm(g.mT, p).square().sum((1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients 2ΓP at P and 2KG at G, or by M = GᵀP, times `upstream`."""
        p, g = ctx.saved_tensors
        twice = 2 * upstream[:, None, None]
        if _gram_is_cheaper(p, g):
            return torch.bmm(torch.bmm(g, g.mT) * twice, p), torch.bmm(torch.bmm(p, p.mT) * twice, g)
        product = torch.bmm(g.mT, p) * twice
        return torch.bmm(g, product), torch.bmm(p, product.mT)


def _gram_is_cheaper(p: Tensor, g: Tensor) -> bool:
    """Whether inner products of positions take fewer multiplications than the sum of outer products."""
    positions, d, o = p.shape[1], p.shape[2], g.shape[2]
    return positions * (d + o) <= d * o


def squared_outer_norm(p: Tensor, g: Tensor) -> Tensor:
    """‖Σₜ gₜ pₜᵀ‖² for rows p (n, T, d) and g (n, T, o), shape (n,), differentiable once.

    With K = PPᵀ and Γ = GGᵀ it is Σ K·Γ, which takes T²(d + o) multiplications, or ‖GᵀP‖², which takes T·d·o. No
    product is kept for the backward pass: ∂/∂G = 2KG = 2PMᵀ and ∂/∂P = 2ΓP = 2GM with M = GᵀP.
    """
    return cast(Tensor, _SquaredOuterNorm.apply(p, g))  # type: ignore[no-untyped-call]


@register(nn.Linear)
class LinearRule(GhostRule):
    """With tokens t, ∂ℓ/∂W = Σₜ gₜ aₜᵀ and ∂ℓ/∂b = Σₜ gₜ; inputs (batch, ..., d)."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """∂ℓᵢ/∂θ from inputs a and output gradients g: (batch, o, d) of the weight, (batch, o) of the bias."""
        return _tokens(g).sum(1) if name == "bias" else _tokens(g).mT @ _tokens(a)

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """Σ ‖∂ℓᵢ/∂θ‖² over weight and bias, those in `names`; the weight's part without forming ∂ℓᵢ/∂W."""
        if "weight" not in names:
            return super().squared_norm(layer, names, a, g)
        if a.dim() == 2:
            return g.square().sum(1) * (a.square().sum(1) + ("bias" in names))
        of_weight = squared_outer_norm(_tokens(a), _tokens(g))
        return of_weight + _tokens(g).sum(1).square().sum(1) if "bias" in names else of_weight


def _tokens(rows: Tensor) -> Tensor:
    """(batch, T, width) of (batch, ..., width)."""
    return rows.reshape(len(rows), -1, rows.shape[-1])


@register(nn.Embedding)
class EmbeddingRule(GhostRule):
    """Row v of ∂ℓ/∂E is Σ gₜ over the positions t that hold token v, and 0 for `padding_idx`; inputs (batch, ...)."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """∂ℓᵢ/∂E of the table, (batch, tokens known, width), from tokens a and output gradients g."""
        tokens, rows = _tokens_and_rows(cast(nn.Embedding, layer), a, g)
        table = g.new_zeros(len(a), cast(nn.Embedding, layer).num_embeddings, g.shape[-1])
        return table.scatter_add(1, tokens[..., None].expand_as(rows), rows)

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """‖∂ℓᵢ/∂E‖²: the gradients of equal tokens are added up, then squared, and no table of gradients is formed."""
        tokens, rows = _tokens_and_rows(cast(nn.Embedding, layer), a, g)
        tokens, order = tokens.sort(1)
        rows = rows.gather(1, order[..., None].expand_as(rows))
        runs = torch.nn.functional.pad((tokens.diff(dim=1) != 0).long(), (1, 0)).cumsum(1)
        sums = torch.zeros_like(rows).scatter_add(1, runs[..., None].expand_as(rows), rows)
        return sums.square().sum((1, 2))


def _tokens_and_rows(table: nn.Embedding, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Token numbers (batch, T) and output gradients (batch, T, width), 0 for padding."""
    tokens, rows = a.reshape(len(a), -1).long(), g.reshape(len(a), -1, table.embedding_dim)
    return tokens, rows if table.padding_idx is None else rows * (tokens != table.padding_idx)[..., None]
