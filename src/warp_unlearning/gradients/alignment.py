"""How every example's gradient lies to a direction of its own: ⟨gᵢ, tᵢ⟩ and ‖gᵢ‖², differentiable once in the inputs.

As in `energy` no gradient of a kernel is ever formed: norms come from what enters the layers and the gradients at their
outputs, and so do inner products. What no rule knows is not known here: ask `can_align` first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from ..gpu.precision import math_attention
from .energy import cross_entropy, output_gradients, parameters_without_rules, squared_norms
from .traced_pass import traced_pass
from .uses import require_unchanged


def can_align(model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str]) -> bool:
    """Whether every parameter in `names` is used in layers that have rules, each in one alone."""
    if set(names) & set(parameters_without_rules(model, x, y, loss=cross_entropy)):
        return False
    with torch.enable_grad():
        traced = traced_pass(model, x)
        traced.trace.close()
    places = {id(p): name for name, p in model.named_parameters()}
    used = [places[id(p)] for use in traced.trace.uses for p in use.parameters.values()]
    return all(used.count(name) == 1 for name in names)


def alignment(model: nn.Module, x: Tensor, y: Tensor, *, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """⟨gᵢ, tᵢ⟩ and ‖gᵢ‖² over the parameters that `directions` (batch, *parameter) name, shapes (batch,), for the
    cross-entropy gradients gᵢ.
    """
    # Fused attention cannot be differentiated twice.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), math_attention():
        traced = traced_pass(model, x, inputs_only=x.requires_grad)
        try:
            require_unchanged(traced.trace.uses)
            losses = cross_entropy(traced.output, y)
            found = output_gradients(losses.sum(), traced.trace, differentiable=True)
            names = {id(p): name for name, p in model.named_parameters()}
            left_out = {key for key, name in names.items() if name not in directions}
            energies = list(squared_norms(traced.trace.uses, found, left_out))
            products = [
                use.rule.alignment(use.layer, own, use.a, g, directions[names[id(p)]])
                for use, g in zip(traced.trace.uses, found, strict=True)
                if g is not None
                for own, p in use.parameters.items()
                if id(p) not in left_out
            ]
        finally:
            traced.trace.close()
        nothing = torch.zeros_like(losses)
        return torch.stack([nothing, *products]).sum(0), torch.stack([nothing, *energies]).sum(0)
