"""What a layer type must say about itself, and which rule belongs to which layer type.

A rule is given the layer, its input a (batch, ...) and G = ∂Σᵢℓᵢ/∂(output) (batch, ...), where row i of both belongs to
example i alone. Both results are differentiable in a and G.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from ...errors import InputError
from .summand import Entry, summed


@dataclass
class Passing:
    """Which backward pass is running: `outputs_only` while the gradients at layer outputs are all that is asked for.

    With `inputs_only` no backward pass asks for gradients of parameters, and layers may take them as constants.
    `handing` are the graph nodes by which rules that hand over parameters themselves do so.
    """

    outputs_only: bool = False
    inputs_only: bool = False
    handing: set[Node] = field(default_factory=set)

    def weight(self, value: Tensor) -> Tensor:
        """A parameter as the pass sees it."""
        return value.detach() if self.inputs_only else value


class Part(NamedTuple):
    """A layer, its input, and the gradient at its output."""

    layer: nn.Module
    a: Tensor
    g: Tensor


class GhostRule(ABC):
    """The per-example gradients of the parameters of one layer type, which are called `names` there."""

    names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def supports(self, layer: nn.Module) -> bool:
        """Whether the rule holds with the options of this layer."""
        return True

    def prepare(self, layers: Sequence[nn.Module]) -> None:  # noqa: B027
        """Note in the layers, which are the caller's own copies, what several steps will need of them."""

    def hands_over(self, layer: nn.Module, a: Tensor) -> bool:
        """Whether the graph nodes are known that point to the parameters: those that `output` notes, and the node of
        what it gives for a, as long as that points to no other leaf.

        Otherwise the layer is given views of its parameters, so that other uses of them stand out in the graph.
        """
        return False

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, passing: Passing) -> Tensor:
        """The layer's output; a rule may know a way that is cheaper to differentiate twice than `forward`."""
        return forward(a)

    @abstractmethod
    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """∂ℓᵢ/∂θ for the layer's parameter `name`, shape (batch, *parameter)."""

    def squared_norm(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """‖∂ℓᵢ/∂θ‖² for the layer's parameter `name`, shape (batch,)."""
        return self.gradient(layer, name, a, g).flatten(1).square().sum(1)

    def alignment(self, layer: nn.Module, name: str, a: Tensor, g: Tensor, direction: Tensor) -> Tensor:
        """⟨∂ℓᵢ/∂θ, Tᵢ⟩ for a direction T (batch, *parameter), shape (batch,)."""
        return (self.gradient(layer, name, a, g) * direction).flatten(1).sum(1)

    def kinship(self, layer: nn.Module, a: Tensor, g: Tensor) -> Hashable | None:
        """What uses have in common whose norms are found faster together, or None where a use is better taken alone."""
        return None

    def entry(self, names: Sequence[str], parts: Sequence[Part]) -> Entry | None:
        """What `squared_norms` gives as a summand, to be found together with those of other rules, or None where that
        is not known.
        """
        return None

    def squared_norms(self, names: Sequence[str], parts: Sequence[Part]) -> Tensor:
        """Σ ‖∂ℓᵢ/∂θ‖² over the parameters `names` of the layers of `parts`, uses of one kinship, shape (batch,)."""
        entry = self.entry(names, parts)
        if entry is not None:
            return summed([entry])
        norms = [self.squared_norm(part.layer, name, part.a, part.g) for part in parts for name in names]
        return norms[0] if len(norms) == 1 else torch.stack(norms).sum(0)


RuleClass = TypeVar("RuleClass", bound=type[GhostRule])

_RULES: dict[type[nn.Module], GhostRule] = {}


def register(*layers: type[nn.Module]) -> Callable[[RuleClass], RuleClass]:
    """Make the decorated rule the one of these layer types; a type that has a rule keeps it and is an error."""

    def add(rule: RuleClass) -> RuleClass:
        for layer in layers:
            if layer in _RULES:
                raise InputError(
                    f"{layer.__name__} already has the rule {type(_RULES[layer]).__name__}; "
                    f"register {rule.__name__} for a subclass of it"
                )
        for layer in layers:
            _RULES[layer] = rule()
        return rule

    return add


def rule_of(layer: nn.Module) -> GhostRule | None:
    """The rule of the layer's type, or None where it has none, or where it computes something of its own."""
    for known in type(layer).__mro__:
        if known in _RULES:
            rule = _RULES[known]
            return rule if _computes_like(layer, known) and rule.supports(layer) else None
    return None


def _computes_like(layer: nn.Module, known: type[nn.Module]) -> bool:
    """Whether what computes the layer's output is untouched: a subclass or an instance may have its own."""
    own, kind = vars(layer), type(layer)
    if "forward" in own or "_conv_forward" in own:
        return False
    return kind is known or all(
        getattr(kind, name, None) is getattr(known, name, None) for name in ("forward", "_conv_forward")
    )
