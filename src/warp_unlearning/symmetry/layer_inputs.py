"""What enters each linear map of a network, by one forward pass over the data.

For a Linear layer an input is a row of the last axis; for a convolution it is a patch, unfolded with the layer's own
kernel, stride, padding and dilation, laid out as (channels, taps) like a row of the flattened weight. So W flattened to
(out, d) acts on inputs of length d, and ΔW with ΔW p = 0 for every input p leaves the layer's output unchanged. Each
group of a grouped convolution has inputs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..kernels.one_pixel_norm import one_pixel_norms
from .kernel_window import Taps, Window, batched
from .linear_weights import LinearWeight, linear_weights

Record = Callable[[LinearWeight, nn.Module, Tensor], None]


def run_watched(
    model: nn.Module,
    batches: Iterable[Tensor],
    layers: Iterable[nn.Module],
    record: Callable[[nn.Module, Tensor], None],
) -> None:
    """Run the model, as it stands, over the batches and show `record` every input of the given layers.

    What is shown is the layer's own input, which a later in-place operation may write over: it must be used at once.
    """

    def hook(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        # What is made of inputs is many small operations, none of which has to be looked at.
        with torch._C.DisableTorchFunction():
            record(layer, (args[0] if args else named["input"]).detach())

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad():
            for x in batches:
                with one_pixel_norms():
                    model(x)
    finally:
        for handle in handles:
            handle.remove()


def observe_inputs(model: nn.Module, batches: Iterable[Tensor], record: Record) -> None:
    """`run_watched` over every layer of every linear weight, which `record` is told too."""
    weights = {layer: weight for weight in linear_weights(model) for layer in weight.layers}
    run_watched(model, batches, weights, lambda layer, x: record(weights[layer], layer, x))


def input_second_moments(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """C = Σ p pᵀ in float64, shape (d, d), for each weight of a Linear or ungrouped Conv1d/Conv2d, keyed by the
    weight's name.

    The model is evaluated as it stands (put it in eval mode) and is left unchanged. A weight used by several modules
    sums the inputs of all. Layers that are never reached, or whose weight is not a parameter, have no entry.
    """
    weight_names = {id(p): name for name, p in model.named_parameters()}
    moments: dict[str, Tensor] = {}

    def record(module: nn.Module, x: Tensor) -> None:
        columns = layer_columns(module, x).double()
        moment = columns.mT @ columns
        name = weight_names[id(module.weight)]
        moments[name] = moments[name] + moment if name in moments else moment

    # A weight that is computed from others at every call (a parametrisation) is no parameter that could be moved.
    layers = [m for m in model.modules() if has_linear_inputs(m) and id(m.weight) in weight_names]
    run_watched(model, batches, layers, record)
    return moments


def reached_inputs(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Which coordinates of each linear weight's inputs are ever other than zero: bool (groups, d), by weight name.

    The coordinates are those of a row of the flattened weight, without a constant for the bias. A tap that meets
    nothing but padding, or a channel that is never active, is not reached: the weights behind it do nothing.
    """
    reached: dict[str, Tensor] = {}

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        # Whether a coordinate is reached is a question about sums of |x|, which commute with unfolding.
        x = batched(layer, x) if isinstance(layer, nn.Conv1d | nn.Conv2d) else x.reshape(-1, x.shape[-1])
        size = x.abs().amax(0, keepdim=True)
        found = (layer_rows(layer, size) != 0).any(1).repeat_interleave(weight.groups // groups_of(layer), 0)
        reached[weight.name] = reached[weight.name] | found if weight.name in reached else found

    observe_inputs(model, batches, record)
    return reached


def has_linear_inputs(module: nn.Module) -> bool:
    """Whether the module is one whose inputs `layer_columns` can lay out."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear)


def layer_columns(module: nn.Module, x: Tensor) -> Tensor:
    """The inputs of one ungrouped layer as rows, shape (positions, d)."""
    return layer_rows(module, x)[0]


def layer_rows(module: nn.Module, x: Tensor, *, taps: Taps | None = None) -> Tensor:
    """The inputs of each group of one layer as rows, shape (groups, positions, d); of a convolution, those that `taps`
    of its kernel read, where they are given.
    """
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return x.reshape(1, -1, x.shape[-1])
    window = Window(module)
    # Positions stay side by side in memory: turning patches around costs more than their use.
    patches = window.patches(x, window.all_taps if taps is None else taps)
    return patches.reshape(module.groups, -1, patches.shape[3:].numel()).mT


def groups_of(module: nn.Module) -> int:
    """How many groups of output rows see inputs of their own."""
    return module.groups if isinstance(module, nn.Conv1d | nn.Conv2d) else 1
