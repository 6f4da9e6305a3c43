"""The input of a fully connected first layer, with no search: after an update on one example ΔW_i / Δb_i is that
example, whatever a change of basis did to the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..undo.base import Held, NotApplicable, difference
from ..undo.inputs import first_layers, implied_inputs
from .reading import held_or_blank
from .threat import Threat


def closed_form_image(threat: Threat) -> Tensor | None:
    """The image (channels, height, width) that the rows of the first layer imply, the mean of them weighted by their
    energy in the bias; None where no fully connected first layer with a bias reads the image as it is.
    """
    held, state = held_or_blank(threat), threat.unlearned.state_dict()
    try:
        rows = implied_inputs(held, state)
    except NotApplicable:
        return None
    delta = difference(held.model, state)
    biases = {weight.name: weight.bias or "" for weight in held.once(first_layers)}
    for name, implied in rows.items():
        bias = delta[biases[name]].square()
        seen = implied.isfinite().all(1) & (bias > 0)
        if implied.shape[1] == _numbers(threat) and bool(seen.any()):
            mean = (implied[seen] * bias[seen, None]).sum(0) / bias[seen].sum()
            if _enters(held, name, mean.reshape(threat.pixels.shape)):
                return threat.pixels.images(mean.reshape(threat.pixels.shape)).clamp(0, 1)
    return None


def _enters(held: Held, name: str, x: Tensor) -> bool:
    """Whether the layer of that weight gets exactly x where the network does: nothing fixed lies between."""
    layer = next(weight.layers[0] for weight in held.once(first_layers) if weight.name == name)
    got: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: got.append(args[0]))
    try:
        with torch.no_grad():
            given = x.to(held.x)[None]
            held.model(given)
    finally:
        handle.remove()
    return len(got) == 1 and got[0].numel() == given.numel() and torch.equal(got[0].flatten(), given.flatten())


def _numbers(threat: Threat) -> int:
    channels, height, width = threat.pixels.shape
    return channels * height * width
