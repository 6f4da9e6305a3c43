"""What enters each linear map of a network: second moments of layer inputs, by one forward pass over the data.

For a Linear layer an input is a row of the last axis; for a convolution it is a patch, unfolded with the layer's own
kernel, stride, padding and dilation, laid out as (channels, taps) like a row of the flattened weight. So W flattened to
(out, d) acts on inputs of length d, and ΔW with ΔW p = 0 for every input p leaves the layer's output unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def input_second_moments(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """C = Σ p pᵀ in float64, shape (d, d), for each weight of a Linear or ungrouped Conv1d/Conv2d, keyed by the
    weight's name.

    The model is evaluated as it stands (put it in eval mode) and is left unchanged. A weight used by several modules
    sums the inputs of all. Layers that are never reached, or whose weight is not a parameter, have no entry.
    """
    weight_names = {id(p): name for name, p in model.named_parameters()}
    moments: dict[str, Tensor] = {}

    def record(module: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = args[0] if args else named["input"]
        columns = layer_columns(module, x.detach()).double()
        moment = columns.mT @ columns
        name = weight_names[id(module.weight)]
        moments[name] = moments[name] + moment if name in moments else moment

    # A weight that is computed from others at every call (a parametrisation) is no parameter that could be moved.
    layers = [m for m in model.modules() if has_linear_inputs(m) and id(m.weight) in weight_names]
    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad():
            for x in batches:
                model(x)
    finally:
        for handle in handles:
            handle.remove()
    return moments


def has_linear_inputs(module: nn.Module) -> bool:
    """Whether the module is one whose inputs `layer_columns` can lay out."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear)


def layer_columns(module: nn.Module, x: Tensor) -> Tensor:
    """The inputs of one layer as rows, shape (positions, d)."""
    if isinstance(module, nn.Conv1d):
        x = x.unsqueeze(-2)
        return _patches(x, (1, *module.kernel_size), (1, *module.stride), _padding(module), (1, *module.dilation))
    if isinstance(module, nn.Conv2d):
        return _patches(x, module.kernel_size, module.stride, _padding(module), module.dilation)
    return x.reshape(-1, x.shape[-1])


def _patches(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: list[int],
    dilation: tuple[int, ...],
) -> Tensor:
    columns = F.unfold(F.pad(x, padding), kernel, stride=stride, dilation=dilation)
    return columns.transpose(1, 2).reshape(-1, columns.shape[1])


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """(left, right, top, bottom), also where the layer says "same" or "valid"."""
    if module.padding == "valid":
        sides: list[int] = [0] * (2 * len(module.kernel_size))
    elif module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    else:
        sides = [side for p in reversed(cast("tuple[int, ...]", module.padding)) for side in (p, p)]
    return sides if isinstance(module, nn.Conv2d) else [*sides, 0, 0]
