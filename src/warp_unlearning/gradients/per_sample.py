"""Gradients of single examples, and their clipped mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from .parameter_slots import parameters_replaced


def per_sample_gradients(
    model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """The cross-entropy gradient of every example, shape (batch, *parameter), for each trainable parameter, or those of
    them in `names`, and the losses, shape (batch,).

    The model is used in the mode it is in; batch norm must be in eval mode, where an example does not depend on the
    others.
    """
    places = {n: p for n, p in model.named_parameters() if p.requires_grad and (names is None or n in names)}

    def loss(parameters: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        with parameters_replaced(model, {id(places[name]): value for name, value in parameters.items()}):
            logits = model(one_x.unsqueeze(0))
        return F.cross_entropy(logits, one_y.unsqueeze(0))

    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = each({n: p.detach() for n, p in places.items()}, x, y)
    return gradients, losses


def clipped_mean_gradient(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    clip: float,
    beside: Mapping[str, Tensor] | None = None,
    chunk: int = 32,
) -> tuple[dict[str, Tensor], Tensor]:
    """The mean over the batch of g_i · min(1, clip / ‖g_i‖), the norm taken over all parameters, and the mean loss.

    g_i is the gradient of an example's cross-entropy plus `beside`, by parameter name: that of another loss.
    At most `chunk` examples' gradients are held at once.
    """
    total: dict[str, Tensor] = {}
    losses = []
    for some_x, some_y in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        gradients, loss = per_sample_gradients(model, some_x, some_y)
        losses.append(loss)
        for name, other in (beside or {}).items():
            gradients[name] = gradients[name] + other
        energy = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
        factor = (clip / energy.sqrt().clamp(min=1e-30)).clamp(max=1.0)
        for name, g in gradients.items():
            part = torch.tensordot(factor, g, dims=1)
            total[name] = total[name] + part if name in total else part
    return {name: g / len(y) for name, g in total.items()}, torch.cat(losses).mean()
