"""The cross-entropy gradients of single examples from what enters the layers and the gradients at their outputs.

One forward and one backward pass over the batch, then one contraction for each parameter by its layer's rule (`ghost`):
∂ℓᵢ/∂W = Σₜ gᵢₜ aᵢₜᵀ for linear layers and convolutions. What no rule knows goes through vmap(grad).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from . import ghost as ghost  # registers the rules
from .batch_axes import unclear_uses
from .energy import Share, cross_entropy, sum_of_uses
from .per_sample import per_sample_gradients
from .traced_pass import TracedPass, traced_pass
from .uses import parameters_used_elsewhere, require_unchanged


def each_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The name and the gradients, shape (batch, *parameter), of each trainable parameter in the order of the model, one
    at a time, so that no more than one of them need be in memory.

    Batch norm and dropout must be in eval mode. The model is left as it was.

    >>> layer = nn.Linear(2, 3)
    >>> [(name, tuple(g.shape)) for name, g in each_gradient(layer, torch.ones(4, 2), torch.tensor([0, 1, 2, 0]))]
    [('weight', (4, 3, 2)), ('bias', (4, 3))]
    """
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        traced = traced_pass(model, x)
    try:
        shares, elsewhere = shares_of(traced, x, y)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        others = {name for name, p in trained.items() if id(p) in elsewhere}
        with torch.no_grad():
            by_vmap = per_sample_gradients(model, x, y, names=others)[0] if others else {}
        for name, p in trained.items():
            if name in others:
                yield name, by_vmap.pop(name)
            else:
                yield name, _summed(shares.pop(id(p), []), p, len(x))
    finally:
        traced.trace.close()


def shares_of(
    traced: TracedPass, x: Tensor, y: Tensor, *, differentiable: bool = False
) -> tuple[dict[int, list[Share]], set[int]]:
    """The uses of every parameter with the gradients at their outputs, which may keep their graph, and the parameters
    that rules do not know in full, by id.
    """
    trace = traced.trace
    require_unchanged(trace.uses)
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        total = cross_entropy(traced.output, y).sum()
        elsewhere = parameters_used_elsewhere(total.grad_fn, trace)
        elsewhere |= {id(p) for use in unclear_uses(traced, x) for p in use.parameters.values()}
    edges = [use.output for use in trace.uses]
    trace.passing.outputs_only = True
    try:
        found = torch.autograd.grad(total, edges, create_graph=differentiable, allow_unused=True) if edges else ()
    finally:
        trace.passing.outputs_only = False
    shares: dict[int, list[Share]] = {}
    for use, g in zip(trace.uses, found, strict=True):
        if g is not None:
            for name, p in use.parameters.items():
                shares.setdefault(id(p), []).append((use, name, g))
    return shares, elsewhere


@torch.no_grad()
def _summed(shares: list[Share], parameter: Tensor, count: int) -> Tensor:
    if not shares:
        return parameter.new_zeros(count, *parameter.shape)
    if len(shares) == 1:
        use, name, g = shares[0]
        return use.rule.gradient(use.layer, name, use.a, g)
    return sum_of_uses(shares)
