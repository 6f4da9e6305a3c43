"""‖∂ℓᵢ/∂θ‖² over chosen parameters by vmap(grad): for what no rule knows, at the price of per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from ..errors import InputError
from .other_forms import LayerNormApart
from .parameter_slots import copy_with_same_parameters, parameters_replaced


def materialised_energy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    parameters: Mapping[str, nn.Parameter],
    total: Mapping[str, Tensor],
) -> Tensor:
    """The squared norm over `parameters`, shape (batch,), differentiable with respect to every parameter.

    `total` is ∂Σᵢℓᵢ/∂θ from a plain backward pass; per-example gradients that do not sum to it are refused.
    """
    copy = copy_with_same_parameters(model)

    def one_loss(chosen: Mapping[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        with parameters_replaced(copy, {id(parameters[name]): value for name, value in chosen.items()}):
            return loss(copy(one_x[None]), one_y[None]).sum()

    try:
        with LayerNormApart():
            gradients = vmap(grad(one_loss), in_dims=(None, 0, 0))(dict(parameters), x.clone(), y)
    except RuntimeError as error:
        raise InputError(
            f"{_listed(parameters)} belong to no layer with a rule, and vmap(grad) fails: {error}; "
            "freeze them with requires_grad_(False), or register a rule for their layer"
        ) from error
    for name, each in gradients.items():
        scale = float(each.detach().flatten(1).norm(dim=1).sum())
        tolerance = 1e3 * torch.finfo(each.dtype).eps * each[0].numel() ** 0.5
        if not float((each.detach().sum(0) - total[name]).norm()) <= tolerance * scale:
            raise InputError(
                f"the per-example gradients of {name} do not sum to the batch's, so examples influence each other or "
                "its layer cannot be called functionally; freeze it with requires_grad_(False), or register a rule"
            )
    return torch.stack([each.flatten(1).square().sum(1) for each in gradients.values()]).sum(0)


def _listed(names: Mapping[str, object]) -> str:
    shown = list(names)[:3]
    return ", ".join(shown) + (", ..." if len(names) > 3 else "")
