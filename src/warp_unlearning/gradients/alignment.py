"""Inner products of every example's gradient with a direction of its own, ⟨gᵢ, tᵢ⟩, and ‖gᵢ‖²: what a search for an
input by its gradient minimises. Differentiable once in the inputs.

As in `energy` no gradient of a kernel is formed: norms and inner products come from the inputs of layers and the
gradients at their outputs. Every parameter needs a rule; `can_align` checks that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from .energy import exact_derivatives, parameters_without_rules
from .per_sample import cross_entropy
from .tracing import copy_with_same_parameters, squared_norms, traced


def can_align(model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str]) -> bool:
    """Whether every parameter in `names` is used in layers that have rules, each in one alone."""
    if set(names) & set(parameters_without_rules(model, x, y, loss=cross_entropy)):
        return False
    with torch.enable_grad():
        trace = traced(copy_with_same_parameters(model), x)
    names_by_id = {id(p): name for name, p in model.named_parameters()}
    used = [names_by_id[id(p)] for use in trace.uses for p in use.parameters.values()]
    return all(used.count(name) == 1 for name in names)


def alignment(model: nn.Module, x: Tensor, y: Tensor, *, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """⟨gᵢ, tᵢ⟩ and ‖gᵢ‖² over the parameters that `directions` (batch, *parameter) name, shapes (batch,), for the
    cross-entropy gradients gᵢ.
    """
    with exact_derivatives(x):
        trace = traced(copy_with_same_parameters(model), x, inputs_only=x.requires_grad)
        trace.require_unchanged()
        losses = cross_entropy(trace.output, y)
        reached = trace.output_gradients(losses.sum(), differentiable=True)
        names = {id(p): name for name, p in model.named_parameters()}
        left_out = {key for key, name in names.items() if name not in directions}
        zero = torch.zeros_like(losses)
        products = [
            use.rule.alignment(use.layer, layer_name, use.a, g, directions[names[id(p)]])
            for use, g in reached
            for layer_name, p in use.parameters.items()
            if id(p) not in left_out
        ]
        return torch.stack([zero, *products]).sum(0), squared_norms(reached, zero, left_out=left_out)
