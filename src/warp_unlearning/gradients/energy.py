"""The gradient energy of every example, eᵢ = ‖∇θ ℓᵢ‖² over the trainable parameters θ, without per-example gradients.

One forward pass records what enters the layers; one backward pass of Σᵢℓᵢ gives the gradients at their outputs, which
belong to single examples as long as no layer mixes examples; each layer's rule (`ghost`) makes squared norms of both. A
parameter used several times counts with the sum of its uses, eᵢ ∋ ‖Σᵤ gᵢᵤ‖². The result is differentiable once:
Σᵢ vᵢeᵢ has the gradient 2 Σᵢ vᵢ Hᵢgᵢ. What no rule knows goes through vmap(grad).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError
from ..gpu.precision import math_attention
from . import ghost
from .batch_axes import known_unclear_uses, unclear_uses
from .energy_checks import check_batch, check_finite, check_losses, check_model, misfit
from .fallback import materialised_energy
from .ghost.rule import GhostRule, Part
from .ghost.summand import Entry, summed
from .traced_pass import TracedPass, traced_pass
from .uses import Trace, Use, parameters_used_elsewhere, require_unchanged

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
    be in eval mode. The model is left as it was; without grad mode the result carries no graph. On a GPU a batch norm
    that the model has and does not call is given gradients of 0 instead of none.

    On a GPU all that stands for a convolution is computed in the precision of torch's convolutions, TF32 by default;
    `torch.backends.cudnn.allow_tf32 = False` makes it exact.

    >>> layer = nn.Linear(2, 2)
    >>> gradient_energy(layer, torch.ones(3, 2), torch.tensor([0, 1, 1])).shape
    torch.Size([3])
    """
    refuse_infinite = check_batch(x, y)
    if not reads_late(x.device):
        refuse_infinite()
    try:
        check_model(model)
        energy = _energy_in_shares(model, x, y, loss=loss)
    except Exception:
        # What the inputs are may be the cause.
        refuse_infinite()
        raise
    refuse_infinite()
    return energy


def reads_late(device: torch.device) -> bool:
    """Whether a device works while the host goes on, so that its numbers are better read once all is begun."""
    return device.type == "cuda"


def _energy_in_shares(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss) -> Tensor:
    differentiable = torch.is_grad_enabled()
    # Fused attention cannot be differentiated twice.
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), math_attention():
        shares = -(-len(x) // CPU_EXAMPLES) if x.device.type == "cpu" else 1
        parts = zip(x.chunk(shares), y.chunk(shares), strict=True) if shares > 1 else [(x, y)]
        found = [_energy(model, *part, loss=loss, differentiable=differentiable) for part in parts]
        energy = found[0] if len(found) == 1 else torch.cat(found)
    return energy if differentiable else energy.detach()


def unchecked_energy(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss) -> Tensor:
    """`gradient_energy` of a batch for which it was found sound before, with no read of a value: every parameter is
    used in layers that have rules, and the first axis of all they read and give is the batch.
    """
    traced = traced_pass(model, x)
    try:
        losses = loss(traced.output, y)
        found = output_gradients(losses.sum(), traced.trace, differentiable=True)
        return total_of(squared_norms(traced.trace.uses, found, set()), losses)
    finally:
        traced.trace.close()


def parameters_without_rules(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss) -> list[str]:
    """The names of the trainable parameters whose energy goes through vmap(grad), at least in part."""
    with torch.enable_grad():
        traced = traced_pass(model, x)
        try:
            elsewhere = parameters_used_elsewhere(loss(traced.output, y).sum().grad_fn, traced.trace)
            elsewhere |= _parameters(unclear_uses(traced, x))
        finally:
            traced.trace.close()
    return [name for name, p in model.named_parameters() if id(p) in elsewhere]


def _energy(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss, differentiable: bool) -> Tensor:
    try:
        traced = traced_pass(model, x)
    except RuntimeError as error:
        raise misfit(model, x, error) from error
    try:
        return _energy_of_pass(traced, model, x, y, loss=loss, differentiable=differentiable)
    finally:
        traced.trace.close()


def _energy_of_pass(
    traced: TracedPass, model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss, differentiable: bool
) -> Tensor:
    trace = traced.trace
    try:
        losses = loss(traced.output, y)
    except IndexError as error:
        raise InputError(
            f"the labels {int(y.min())} to {int(y.max())} do not fit an output of shape {tuple(traced.output.shape)}: "
            f"{error}"
        ) from error
    check_losses(losses, len(x))
    total = losses.sum()
    refuse_infinite = check_finite(losses, total)
    require_unchanged(trace.uses)
    found = output_gradients(total, trace, differentiable=differentiable)
    elsewhere = parameters_used_elsewhere(total.grad_fn, trace)
    told = known_unclear_uses(traced, x)
    unclear = _parameters(_misshapen(trace.uses, x) if told is None else told)
    norms = list(squared_norms(trace.uses, found, elsewhere | unclear))
    if told is None:
        # After the norms, which a GPU works on meanwhile, and which seldom prove to be in vain.
        misshapen, unclear = unclear, _parameters(unclear_uses(traced, x))
        if unclear != misshapen:
            norms = list(squared_norms(trace.uses, found, elsewhere | unclear))
    elsewhere |= unclear
    energy = total_of(norms, losses)
    refuse_infinite()
    other = {name: p for name, p in model.named_parameters() if id(p) in elsewhere} if elsewhere else {}
    sums = torch.autograd.grad(total, list(other.values()), retain_graph=True, allow_unused=True) if other else ()
    summed = {name: g for name, g in zip(other, sums, strict=True) if g is not None}
    if summed:
        known = {name: other[name] for name in summed}
        energy = energy + materialised_energy(model, x, y, loss=loss, parameters=known, total=summed)
    return energy


def output_gradients(total: Tensor, trace: Trace, *, differentiable: bool) -> tuple[Tensor | None, ...]:
    """∂Σᵢℓᵢ/∂(output) of every use, or None where the loss does not depend on it."""
    edges = [use.output for use in trace.uses]
    if not edges:
        return ()
    trace.passing.outputs_only = True
    try:
        # The fallback differentiates the same graph, and so does the caller.
        return torch.autograd.grad(total, edges, create_graph=differentiable, retain_graph=True, allow_unused=True)
    finally:
        trace.passing.outputs_only = False


def _misshapen(uses: list[Use], x: Tensor) -> Iterator[Use]:
    """The uses whose first axis cannot be the batch."""
    batch = x.shape[:1]
    return (use for use in uses if not use.a.shape[:1] == use.output_shape[:1] == batch)


def _parameters(uses: Iterable[Use]) -> set[int]:
    return {id(p) for use in uses for p in use.parameters.values()}


def total_of(norms: Iterable[Tensor], losses: Tensor) -> Tensor:
    """Σ of the norms, each of the shape of the losses; zeros where there are none."""
    found = list(norms)
    if not found:
        return torch.zeros_like(losses)
    if len(found) == 1:
        return found[0].to(torch.promote_types(found[0].dtype, losses.dtype))
    each = torch.stack(found)
    return each.sum(0, dtype=torch.promote_types(each.dtype, losses.dtype))


Share = tuple[Use, str, Tensor]


def squared_norms(uses: list[Use], found: tuple[Tensor | None, ...], elsewhere: set[int]) -> Iterator[Tensor]:
    """The norms of the parameters that rules know in full, from the gradients found at the outputs of their uses."""
    reached = [(use, g) for use, g in zip(uses, found, strict=False) if g is not None]
    several = _twice([id(p) for use, _ in reached for p in use.parameters.values()])
    apart = elsewhere | several
    kin: dict[Hashable, tuple[GhostRule, tuple[str, ...], list[Part]]] = {}
    for index, (use, g) in enumerate(reached):
        names = tuple(name for name, p in use.parameters.items() if id(p) not in apart) if apart else (*use.parameters,)
        if names:
            kinship = use.rule.kinship(use.layer, use.a, g)
            key = index if kinship is None else (use.rule, names, kinship)
            kin.setdefault(key, (use.rule, names, []))[2].append(Part(use.layer, use.a, g))
    entries: list[Entry] = []
    for rule, names, parts in kin.values():
        entry = rule.entry(names, parts)
        if entry is None:
            yield rule.squared_norms(names, parts)
        else:
            entries.append(entry)
    if entries:
        yield summed(entries)
    for shares in _shares(reached, several - elsewhere):
        yield sum_of_uses(shares).flatten(1).square().sum(1)


def _twice(found: list[int]) -> set[int]:
    """Those that are there more than once."""
    return set() if len(set(found)) == len(found) else {one for one, count in Counter(found).items() if count > 1}


def _shares(reached: list[tuple[Use, Tensor]], several: set[int]) -> Iterable[list[Share]]:
    """For each of these parameters, by the first of its uses, all of them."""
    found: dict[int, list[Share]] = {}
    for use, g in reached if several else ():
        for name, p in use.parameters.items():
            if id(p) in several:
                found.setdefault(id(p), []).append((use, name, g))
    return found.values()


def sum_of_uses(shares: list[Share]) -> Tensor:
    """The gradient of a parameter that several uses share, shape (batch, *parameter)."""
    return torch.stack([use.rule.gradient(use.layer, name, use.a, g) for use, name, g in shares]).sum(0)
