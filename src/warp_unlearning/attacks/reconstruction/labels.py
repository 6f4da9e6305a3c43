"""The label of a forgotten example, read off the last layer.

The gradient of the cross-entropy at the logits is p − onehot(y), negative at y alone, and features after a ReLU are not
negative: the row of the last weight whose entries sum to the least is that of the label, or the least entry of the last
bias.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...symmetry.layer_inputs import LinearWeight, linear_weights


def last_linear(model: nn.Module, x: Tensor) -> LinearWeight | None:
    """The fully connected layer whose output for x is the model's own, or None; the model is in eval mode."""
    outputs: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        outputs[layer] = output

    weights = [w for w in linear_weights(model) if isinstance(w.layers[0], nn.Linear)]
    handles = [layer.register_forward_hook(note) for w in weights for layer in w.layers]
    try:
        with torch.no_grad():
            logits = model(x)
    finally:
        for handle in handles:
            handle.remove()
    found = [w for w in weights if len(w.layers) == 1 and _same(outputs.get(w.layers[0]), logits)]
    return found[-1] if found else None


def inferred_labels(model: nn.Module, x: Tensor, targets: Mapping[str, Tensor], *, count: int) -> Tensor | None:
    """The labels (n, count) of the examples whose gradients the targets (n, *parameter) are; None where the model does
    not end in a linear layer, or targets know nothing of it. Examples forgotten together are taken to differ in label.
    `x` is any input of the model.
    """
    last = last_linear(model, x)
    if last is None or last.name not in targets:
        return None
    by_bias = last.bias is not None and last.bias in targets
    rows = targets[last.bias or ""] if by_bias else targets[last.name].sum(-1)
    if bool((rows == 0).all(-1).any()):
        return None
    return rows.topk(min(count, rows.shape[1]), largest=False).indices.sort(-1).values


def _same(output: Tensor | None, logits: Tensor) -> bool:
    return output is not None and output.shape == logits.shape and torch.equal(output, logits)
