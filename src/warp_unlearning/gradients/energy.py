"""The gradient energy of every example, eᵢ = ‖∇θ ℓᵢ‖² over the trainable parameters θ, without per-example gradients.

One forward pass records what enters the layers; one backward pass of Σᵢℓᵢ gives the gradients at their outputs, which
belong to single examples as long as no layer mixes examples; each layer's rule (`ghost`) makes squared norms of both. A
parameter used several times counts with the sum of its uses, eᵢ ∋ ‖Σᵤ gᵢᵤ‖². The result is differentiable once:
Σᵢ vᵢeᵢ has the gradient 2 Σᵢ vᵢ Hᵢgᵢ. What no rule knows goes through vmap(grad).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import ghost
from .energy_checks import check_batch, check_losses, check_model
from .fallback import materialised_energy
from .uses import Trace, Use, parameters_used_elsewhere, require_unchanged, traced_copy, unclear_uses

Loss = Callable[[Tensor, Tensor], Tensor]

# On a CPU larger shares are no faster. A backward pass ends one share before it begins another, and what the norms send
# to every layer before the layers themselves are differentiated exists for one share alone.
CPU_EXAMPLES = 32

__all__ = ["Loss", "cross_entropy", "ghost", "gradient_energy"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """−log p(yᵢ), shape (batch,)."""
    return F.cross_entropy(logits, y, reduction="none")


def gradient_energy(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> Tensor:
    """‖∇θ ℓᵢ‖² of every example over all trainable parameters, shape (batch,), differentiable once in the parameters.

    `loss(model(x), y)` gives one loss for each example, and rows of x and y are examples. Batch norm and dropout must
    be in eval mode. The model is left as it was; without grad mode the result carries no graph.

    >>> layer = nn.Linear(2, 2)
    >>> gradient_energy(layer, torch.ones(3, 2), torch.tensor([0, 1, 1])).shape
    torch.Size([3])
    """
    check_batch(x, y)
    check_model(model)
    differentiable = torch.is_grad_enabled()
    # Fused attention cannot be differentiated twice.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), sdpa_kernel(SDPBackend.MATH):
        shares = -(-len(x) // CPU_EXAMPLES) if x.device.type == "cpu" else 1
        parts = zip(x.chunk(shares), y.chunk(shares), strict=True)
        energy = torch.cat([_energy(model, *part, loss=loss, differentiable=differentiable) for part in parts])
    return energy if differentiable else energy.detach()


def _energy(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss, differentiable: bool) -> Tensor:
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    trace, of_one = Trace(), Trace()
    traced_copy(model, of_one)(x[:1].clone())
    losses = loss(traced_copy(model, trace)(x.clone()), y)
    check_losses(losses, len(x))
    require_unchanged(trace.uses)
    total = losses.sum()
    elsewhere = parameters_used_elsewhere(total.grad_fn, trace)
    elsewhere |= {id(p) for use in unclear_uses(trace, of_one, len(x)) for p in use.parameters.values()}
    other = {names[key]: p for key, p in _by_id(model).items() if key in elsewhere}
    sums = torch.autograd.grad(total, list(other.values()), retain_graph=True, allow_unused=True) if other else ()
    found = _output_gradients(total, trace, differentiable=differentiable)
    energy = torch.zeros_like(losses)
    for parts in _by_parameter(trace.uses, found, elsewhere).values():
        energy = energy + _squared_norm(parts)
    summed = {name: g for name, g in zip(other, sums, strict=True) if g is not None}
    if summed:
        known = {name: other[name] for name in summed}
        energy = energy + materialised_energy(model, x, y, loss=loss, parameters=known, total=summed)
    return energy


def _output_gradients(total: Tensor, trace: Trace, *, differentiable: bool) -> tuple[Tensor | None, ...]:
    """∂Σᵢℓᵢ/∂(output) of every use, or None where the loss does not depend on it."""
    edges = [use.output for use in trace.uses]
    if not edges:
        return ()
    trace.passing.outputs_only = True
    try:
        return torch.autograd.grad(total, edges, create_graph=differentiable, allow_unused=True)
    finally:
        trace.passing.outputs_only = False


Part = tuple[Use, str, Tensor]


def _by_parameter(uses: list[Use], found: tuple[Tensor | None, ...], elsewhere: set[int]) -> dict[int, list[Part]]:
    """The uses of each parameter that rules know in full, with the gradients at their outputs."""
    parts: dict[int, list[Part]] = {}
    for use, g in zip(uses, found, strict=False):
        for name, p in use.parameters.items():
            if g is not None and id(p) not in elsewhere:
                parts.setdefault(id(p), []).append((use, name, g))
    return parts


def _squared_norm(parts: list[Part]) -> Tensor:
    if len(parts) == 1:
        use, name, g = parts[0]
        return use.rule.squared_norm(use.layer, name, use.a, g)
    return sum_of_uses(parts).flatten(1).square().sum(1)


def sum_of_uses(parts: list[Part]) -> Tensor:
    """The gradient of a parameter that several uses share, shape (batch, *parameter)."""
    return torch.stack([use.rule.gradient(use.layer, name, use.a, g) for use, name, g in parts]).sum(0)


def _by_id(model: nn.Module) -> dict[int, nn.Parameter]:
    return {id(p): p for p in model.parameters() if p.requires_grad}
