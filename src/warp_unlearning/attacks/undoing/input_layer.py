"""*input-layer*: the rows of the layers that read the network's input, each by its direction.

Inputs of a network are pinned, so whatever a change of basis does to an update, a row [ΔW_i Δb_i] of a first layer is
multiplied by one number. In a fully connected first layer a single example has ΔW_i = δ_i xᵀ and Δb_i = δ_i, and
ΔW_i / Δb_i is the example itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...symmetry.layer_inputs import LinearWeight, linear_weights
from .protocol import Held, NamedStep, NotApplicable, Undo, Weights
from .states import CleanedDifference, at_length_of, difference


@dataclass(frozen=True)
class InputLayer(NamedStep):
    """Rows [ΔW_i Δb_i] of the first layers at one length for all, so that together they are as long as they were; rows
    of zeros stay, and all other parameters are those of the original.
    """

    step_name: ClassVar[str] = "input-layer"

    def prepared(self, held: Held) -> Undo:
        """Find the layers that read the input."""
        first = held.once(first_layers)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            rows: dict[str, Tensor] = {}
            for weight in first:
                rows |= _unit_rows(weight, delta)
            aligned = at_length_of(rows, {name: delta[name] for name in rows})
            return {name: aligned.get(name, torch.zeros_like(value)) for name, value in delta.items()}

        return CleanedDifference(held, clean)


def first_layers(held: Held) -> list[LinearWeight]:
    """Linear weights that no other weights lie before: everything between the input and their layers is fixed."""
    after: dict[nn.Module, bool] = {}

    def note(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = args[0] if args else next(iter(named.values()))
        after[layer] = after.get(layer, False) or x.requires_grad

    weights = list(linear_weights(held.model))
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for w in weights for m in w.layers]
    try:
        # A tensor that depends on a trainable weight is one that autograd follows.
        with torch.enable_grad():
            held.model(held.x[:1])
    finally:
        for handle in handles:
            handle.remove()
    found = [w for w in weights if all(after.get(layer) is False for layer in w.layers)]
    if not found:
        raise NotApplicable(f"no Linear, Conv1d or Conv2d layer of {type(held.original).__name__} reads its input")
    return found


def implied_inputs(held: Held, state: Weights) -> dict[str, Tensor]:
    """ΔW_i / Δb_i for every row of each fully connected first layer with a bias, (rows, d) by weight name; NaN in rows
    whose bias did not change.

    After an update on one example each row is that example, in the form in which it enters the layer.
    """
    delta = difference(held.model, state)
    layers = [w for w in held.once(first_layers) if w.bias is not None and isinstance(w.layers[0], nn.Linear)]
    if not layers:
        raise NotApplicable(f"{type(held.original).__name__} has no fully connected first layer with a bias")
    found = {}
    for weight in layers:
        moved = delta[weight.bias or ""].unsqueeze(1)
        found[weight.name] = torch.where(moved == 0, torch.nan, delta[weight.name] / moved)
    return found


def _unit_rows(weight: LinearWeight, delta: Weights) -> dict[str, Tensor]:
    names = [weight.name] if weight.bias is None else [weight.name, weight.bias]
    energy = torch.stack([delta[name].reshape(len(delta[name]), -1).square().sum(1) for name in names]).sum(0)
    factors = energy.sqrt().clamp(min=1e-300).reciprocal()
    return {name: delta[name] * factors.reshape(-1, *[1] * (delta[name].dim() - 1)) for name in names}
