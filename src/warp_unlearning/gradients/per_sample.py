"""Gradients of single examples: by rules or by vmap(grad), one parameter at a time or all, and their clipped mean.

By rules there is one forward and one backward pass over the batch, and one contraction for each parameter (`rules`):
∂ℓᵢ/∂W = Σₜ gᵢₜ aᵢₜᵀ for linear layers and convolutions. Parameters without a rule go through vmap(grad).

Methods clip these gradients or square them, and attacks compare them with what an update reveals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from ..gpu.precision import math_attention
from .tracing import (
    Share,
    TwiceDifferentiable,
    copy_with_same_parameters,
    parameters_replaced,
    shares_by_parameter,
    sum_of_uses,
    traced,
    used_without_rules,
)

Loss = Callable[[Tensor, Tensor], Tensor]


# −log p(yᵢ), shape (batch,).
cross_entropy: Loss = partial(F.cross_entropy, reduction="none")


def gradients_by_vmap(
    model: nn.Module, x: Tensor, y: Tensor, parameters: Mapping[str, Tensor], *, loss: Loss = cross_entropy
) -> tuple[dict[str, Tensor], Tensor]:
    """∂ℓᵢ/∂θ, shape (batch, *parameter), of parameters by their names in the model, and the losses, shape (batch,).

    `parameters` holds the values to differentiate at, which may carry a gradient history.
    """
    own_parameters = dict(model.named_parameters())

    def example_loss(values: Mapping[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        """The loss of one example, as a batch of one, with `values` in place of the parameters."""
        with parameters_replaced(model.modules(), {id(own_parameters[name]): value for name, value in values.items()}):
            return loss(model(example[None]), label[None]).sum()

    of_examples = vmap(grad_and_value(example_loss), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = of_examples(dict(parameters), x, y)
    return gradients, losses


def per_sample_gradients(
    model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """The cross-entropy gradient of every example, shape (batch, *parameter), for each trainable parameter, or those of
    them in `names`, and the losses, shape (batch,).

    The model is used in the mode it is in; batch norm must be in eval mode, or examples depend on each other.
    """
    wanted = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad and (names is None or n in names)}
    return gradients_by_vmap(model, x, y, wanted, loss=F.cross_entropy)


def clipped_mean_gradient(
    model: nn.Module, x: Tensor, y: Tensor, *, clip: float, beside: Mapping[str, Tensor] | None = None, chunk: int = 32
) -> tuple[dict[str, Tensor], Tensor]:
    """The mean over the batch of g_i · min(1, clip / ‖g_i‖), the norm taken over all parameters, and the mean loss.

    g_i is the gradient of an example's cross-entropy plus `beside`, by parameter name: that of another loss.
    At most `chunk` examples' gradients are held at once.
    """
    total: dict[str, Tensor] = {}
    losses = []
    for chunk_x, chunk_y in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        gradients, loss = per_sample_gradients(model, chunk_x, chunk_y)
        losses.append(loss)
        for name, other in (beside or {}).items():
            gradients[name] = gradients[name] + other
        energy = torch.stack([g.reshape(len(chunk_y), -1).square().sum(1) for g in gradients.values()]).sum(0)
        factor = (clip / energy.sqrt().clamp(min=1e-30)).clamp(max=1.0)
        for name, g in gradients.items():
            clipped_sum = torch.tensordot(factor, g, dims=1)
            total[name] = total[name] + clipped_sum if name in total else clipped_sum
    return {name: g / len(y) for name, g in total.items()}, torch.cat(losses).mean()


def each_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The name and the cross-entropy gradients, shape (batch, *parameter), of each trainable parameter in the order of
    the model, one at a time, so that no more than one of them need be in memory.

    Batch norm and dropout must be in eval mode. The model is left as it was.

    >>> layer = nn.Linear(2, 3)
    >>> [(name, tuple(g.shape)) for name, g in each_gradient(layer, torch.ones(4, 2), torch.tensor([0, 1, 2, 0]))]
    [('weight', (4, 3, 2)), ('bias', (4, 3))]
    """
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        shares, elsewhere = _shares(model, x, y, differentiable=False)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    others = {name for name, p in trained.items() if id(p) in elsewhere}
    with torch.no_grad():
        by_vmap = per_sample_gradients(model, x, y, names=others)[0] if others else {}
    for name, p in trained.items():
        with torch.no_grad():
            uses = shares.pop(id(p), [])
            gradients = by_vmap.pop(name) if name in others else _sum_or_zero(uses, p, len(x))
        yield name, gradients


def example_gradients(model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str]) -> dict[str, Tensor]:
    """∂ℓᵢ/∂θ of cross-entropy, shape (batch, *parameter), of the trainable parameters `names`, with a graph to x.

    Differentiable once in x. Batch norm and dropout must be in eval mode. The model is left as it was. No value is read
    back where every parameter has a rule, so that a search over inputs can be captured as a CUDA graph.
    """
    # Fused attention cannot be differentiated twice.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), math_attention():
        shares, elsewhere = _shares(model, x, y, differentiable=True)
        wanted = {name: p for name, p in model.named_parameters() if name in names}
        others = {name: p.detach() for name, p in wanted.items() if id(p) in elsewhere}
        gradients: dict[str, Tensor] = {}
        if others:
            with TwiceDifferentiable(layer_norm=True):
                gradients = gradients_by_vmap(model, x, y, others)[0]
        for name, p in wanted.items():
            if name not in gradients:
                gradients[name] = _sum_or_zero(shares.get(id(p), []), p, len(x))
    return {name: gradients[name] for name in names}


def _shares(model: nn.Module, x: Tensor, y: Tensor, *, differentiable: bool) -> tuple[dict[int, list[Share]], set[int]]:
    """By parameter id, its uses with their output gradients; and the ids of the parameters that need vmap(grad)."""
    copy = copy_with_same_parameters(model)
    trace = traced(copy, x, inputs_only=x.requires_grad)
    trace.require_unchanged()
    total = cross_entropy(trace.output, y).sum()
    reached = trace.output_gradients(total, differentiable=differentiable)
    return shares_by_parameter(reached), used_without_rules(model, copy, trace, x, total)


def _sum_or_zero(shares: list[Share], parameter: Tensor, batch: int) -> Tensor:
    """The gradient of a parameter by all of its uses, shape (batch, *parameter); zero if the loss uses it nowhere."""
    return sum_of_uses(shares) if shares else parameter.new_zeros(batch, *parameter.shape)
