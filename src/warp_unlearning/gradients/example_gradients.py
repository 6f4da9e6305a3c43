"""The cross-entropy gradient of every example as a function of the examples: differentiable once in the inputs.

As `each_gradient`, from what enters the layers and the gradients at their outputs, with the graph kept. What no rule
knows goes through vmap(grad). No value is read back where every parameter is used in layers that have rules, so that a
search over inputs can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from ..gpu.precision import math_attention
from .each_gradient import shares_of
from .energy import cross_entropy, sum_of_uses
from .other_forms import LayerNormApart
from .parameter_slots import parameters_replaced
from .traced_pass import traced_pass


def example_gradients(model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str]) -> dict[str, Tensor]:
    """∂ℓᵢ/∂θ, shape (batch, *parameter), of the trainable parameters `names`, with a graph to x.

    Batch norm and dropout must be in eval mode. The model is left as it was.
    """
    # Fused attention cannot be differentiated twice.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), math_attention():
        traced = traced_pass(model, x, inputs_only=x.requires_grad)
        try:
            shares, elsewhere = shares_of(traced, x, y, differentiable=True)
            places = {name: p for name, p in model.named_parameters() if name in names}
            others = [name for name, p in places.items() if id(p) in elsewhere]
            found = _by_vmap(model, x, y, others) if others else {}
            for name, p in places.items():
                if name not in found:
                    uses = shares.get(id(p), [])
                    found[name] = sum_of_uses(uses) if uses else p.new_zeros(len(x), *p.shape)
        finally:
            traced.trace.close()
    return {name: found[name] for name in names}


def _by_vmap(model: nn.Module, x: Tensor, y: Tensor, names: list[str]) -> dict[str, Tensor]:
    places = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        with parameters_replaced(model, {id(places[name]): value for name, value in weights.items()}):
            return cross_entropy(model(one_x[None]), one_y[None]).sum()

    with LayerNormApart():
        found: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(
            {name: places[name].detach() for name in names}, x, y
        )
    return found
