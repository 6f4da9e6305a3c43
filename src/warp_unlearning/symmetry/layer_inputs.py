"""The inputs of each linear map of a network, by one forward pass over the data.

An input of a Linear layer is a row of the last axis; an input of a convolution is a patch, laid out as (channels, taps)
like a row of the flattened weight. So W flattened to (out, d) acts on inputs of length d, and ΔW with ΔW p = 0 for
every input p leaves the layer's output unchanged. Each group of a grouped convolution has inputs of its own; so have
the queries, keys and values of an `nn.MultiheadAttention`, whose in_proj_weight is treated as a layer of three groups.

Null-space moves and the method `pgu` make bases of these inputs; certificates ask which weights any input reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError
from ..gradients.tracing import copy_with_same_parameters, parameters_as_views, parameters_used_elsewhere
from ..linalg.subspace import SecondMoment, project_out
from ..modules import padded

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Entries of patches that are copied at once: 256 MiB in float32, and more on a GPU, for fewer launches.
_PIECE, _PIECE_ON_GPU = 2**26, 2**29


@dataclass(frozen=True, eq=False)
class LinearWeight:
    """One weight that acts as a linear map on what enters `layers`, all the layers that hold it.

    `name` is that of the parameter `tensor` in the model. `bias` is added to the output; None where there is none, or
    where the layers differ in it or others hold it too. `groups` equal consecutive blocks of rows see inputs of their
    own; d is the length of such a row.
    """

    name: str
    tensor: Tensor
    bias: str | None
    groups: int
    layers: tuple[nn.Module, ...]

    @property
    def d(self) -> int:
        """Coordinates of an input, without a constant for the bias."""
        return self.tensor[0].numel()


@dataclass(frozen=True, eq=False)
class InputBasis:
    """An orthonormal basis (groups, d, k) of the inputs of one weight, with 1 last for the bias that moves with it.

    `ranks` says how many columns each group uses; the others are zero. `reached`, bool (groups, d), is False in
    coordinates that were zero in every input. `captured` is the share of the energy of the inputs that the basis holds
    in the group where it holds least. `positions` is how many inputs were seen: rows, or patches.
    """

    weight: str
    bias: str | None
    basis: Tensor
    ranks: tuple[int, ...]
    reached: Tensor
    captured: float
    positions: int

    @classmethod
    def leading(cls, weight: LinearWeight, moment: SecondMoment, energy: float, **options: Any) -> InputBasis:
        """The leading directions of the inputs that `moment` has seen; options as of `SecondMoment.leading`."""
        found = moment.leading(energy, **options)
        basis, reached = found.basis.to(weight.tensor.dtype), moment.energy > 0
        return cls(weight.name, weight.bias, basis, found.ranks, reached, found.captured, moment.positions)

    @property
    def d(self) -> int:
        """Coordinates of an input, the constant included."""
        return self.basis.shape[1]

    @property
    def rank(self) -> int:
        """Directions spanned, over all groups."""
        return sum(self.ranks)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that move."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def project_out(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Remove from an update of the weight and the bias the part that changes the layer's outputs on the inputs."""
        # Nearly all of a gradient may lie in the span: the second projection removes the rounding errors of the first.
        return self._on_rows(values, lambda rows: project_out(project_out(rows, self.basis), self.basis))

    def where_reached(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values where some input reaches them, and zero elsewhere."""
        return self._on_rows(values, lambda rows: rows)

    def _on_rows(self, values: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Apply `change` to the rows of the weight, each with its entry of the bias last, where inputs reach them."""
        tensors = [values[name] for name in self.names]
        widths = [self.d] if self.bias is None else [self.d - 1, 1]
        rows = [tensor.reshape(len(self.basis), -1, width) for tensor, width in zip(tensors, widths, strict=True)]
        changed = change(torch.cat(rows, 2).to(self.basis)) * self.reached[:, None]
        parts = zip(self.names, tensors, torch.split(changed, widths, 2), strict=True)
        return {name: part.reshape(tensor.shape).to(tensor) for name, tensor, part in parts}


# What `observe` calls: takes a weight and inputs of one of its layers as columns, (groups, d, positions).
Record = Callable[[LinearWeight, Tensor], None]
# Takes the arguments with which a layer is called.
Hook = Callable[[tuple[Any, ...], Mapping[str, Any]], None]


def linear_weights(model: nn.Module) -> list[LinearWeight]:
    """The weights of every Linear, Conv1d, Conv2d, Conv3d and MultiheadAttention that computes what its class does.

    Left out are weights that are computed at every call (a parametrisation), that another kind of layer holds too (an
    embedding tied to the output), that lie in the memory of another, or whose layers differ in their groups.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    overlapping = _overlapping(tensor for _, tensor in tensors)
    names = {id(tensor): name for name, tensor in reversed(tensors) if id(tensor) not in overlapping}
    owner_counts: dict[int, int] = {}
    uses: dict[int, list[tuple[nn.Module, str, str, int]]] = {}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            owner_counts[id(tensor)] = owner_counts.get(id(tensor), 0) + 1
        for weight_name, bias_name, groups in _maps_of(module):
            uses.setdefault(id(getattr(module, weight_name)), []).append((module, weight_name, bias_name, groups))
    weights = []
    for key, uses_of_weight in uses.items():
        first, weight_name, bias_name, groups = uses_of_weight[0]
        count = len(uses_of_weight)
        if key not in names or count != owner_counts[key] or len({use[3] for use in uses_of_weight}) > 1:
            continue
        bias = getattr(first, bias_name, None)
        same_bias = all(getattr(module, name, None) is bias for module, _, name, _ in uses_of_weight)
        moves_bias = bias is not None and same_bias and owner_counts.get(id(bias)) == count
        layers = tuple(dict.fromkeys(module for module, *_ in uses_of_weight))
        bias_key = names.get(id(bias)) if moves_bias else None
        weights.append(LinearWeight(names[key], getattr(first, weight_name), bias_key, groups, layers))
    return weights


def _overlapping(tensors: Iterable[Tensor]) -> set[int]:
    """Ids of the tensors that share memory with another of them."""
    overlapping: set[int] = set()
    spans = []
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.numel() > 0:
            last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            storage, offset = tensor.untyped_storage()._cdata, int(tensor.storage_offset())
            spans.append(((storage, offset), (storage, offset + last + 1), id(tensor)))
    # In the order of their starts, a span overlaps an earlier one if it starts before the furthest end so far.
    furthest_end, furthest_key = (0, 0), 0
    for start, end, key in sorted(spans):
        if start < furthest_end:
            overlapping |= {furthest_key, key}
        furthest_end, furthest_key = max((furthest_end, furthest_key), (end, key))
    return overlapping


def _maps_of(module: nn.Module) -> list[tuple[str, str, int]]:
    """The linear maps of a module's input, by attributes of weight and bias, and groups; none where it may differ."""
    kinds = (nn.Linear, *_CONVOLUTIONS, nn.MultiheadAttention)
    kind = next((kind for kind in kinds if isinstance(module, kind)), None)
    methods = ("forward", "_conv_forward")
    # A layer with a forward pass of its own may do anything with its weight.
    if kind is None or any(
        name in vars(module) or getattr(type(module), name, None) is not getattr(kind, name, None) for name in methods
    ):
        return []
    if not isinstance(module, nn.MultiheadAttention):
        return [("weight", "bias", getattr(module, "groups", 1))]
    if module._qkv_same_embed_dim:
        return [("in_proj_weight", "in_proj_bias", 3)]
    return [(f"{part}_proj_weight", "", 1) for part in "qkv"]


def _is_attention(module: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    """Whether it is an attention layer that computes what its class does."""
    return isinstance(module, nn.MultiheadAttention) and bool(_maps_of(module))


def observe(model: nn.Module, batches: Iterable[Tensor], weights: Iterable[LinearWeight], record: Record) -> None:
    """Run the model, as it stands, over the batches and show `record` all inputs of the layers of `weights`.

    A constant 1 is the last coordinate of the inputs of a weight that has a bias. Large inputs come in several parts.
    """
    by_layer: dict[nn.Module, list[LinearWeight]] = {}
    for weight in weights:
        for layer in weight.layers:
            by_layer.setdefault(layer, []).append(weight)
    hooks: dict[nn.Module, Hook] = {}
    for module in model.modules():
        own_weights = by_layer.get(module, [])
        if _is_attention(module):
            # It reads the weight of `out_proj` and does not call that layer.
            hooks[module] = partial(_record_attention, record, module, own_weights + by_layer.get(module.out_proj, []))
        elif own_weights:
            hooks[module] = partial(_record_layer, record, module, own_weights[0])
    _run_hooked(model, batches, hooks)


def observe_norms(model: nn.Module, batches: Iterable[Tensor], record: Record) -> list[LinearWeight]:
    """Show `record` the features of each batch norm as inputs of its trainable parameters, and return these as maps of
    their channels: the paper's treatment, which does not keep the function.
    """
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    by_norm: dict[nn.Module, list[LinearWeight]] = {}
    for norm in model.modules():
        affine = norm.parameters(recurse=False) if isinstance(norm, _BatchNorm) else ()
        trained = [p for p in affine if id(p) in names]
        if trained:
            by_norm[norm] = [
                LinearWeight(names[id(p)], p.detach()[None], bias=None, groups=1, layers=(norm,)) for p in trained
            ]

    def record_features(weights: list[LinearWeight], args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Show `record` the input of one norm, a column (channels,) for each position of each example."""
        x: Tensor = (args[0] if args else named["input"]).detach()
        for weight in weights:
            record(weight, x.movedim(1, 0).flatten(1).unsqueeze(0))  # One group.

    _run_hooked(model, batches, {norm: partial(record_features, weights) for norm, weights in by_norm.items()})
    return [weight for weights in by_norm.values() for weight in weights]


def _run_hooked(model: nn.Module, batches: Iterable[Tensor], hooks: Mapping[nn.Module, Hook]) -> None:
    """Run the model, as it stands, over the batches, calling each module's hook with its arguments beforehand.

    A hook must use what it is given at once: a later in-place operation may write over it.
    """

    def call(hook: Hook, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        hook(args, named)

    handles = [m.register_forward_pre_hook(partial(call, hook), with_kwargs=True) for m, hook in hooks.items()]
    fast = torch.backends.mha.get_fastpath_enabled()
    # The fast path of a transformer layer calls none of the layers inside.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            for x in batches:
                model(x.clone())
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


def reached_inputs(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Which coordinates of each linear weight's inputs are ever other than zero: bool (groups, d), by weight name.

    A tap that reads nothing but padding, or a channel that is never active, is not reached: the weights behind it do
    nothing. The constant of a bias is not among the coordinates.
    """
    reached: dict[str, Tensor] = {}

    def record(weight: LinearWeight, columns: Tensor) -> None:
        nonzero = (columns[:, : weight.d] != 0).any(2)
        reached[weight.name] = reached[weight.name] | nonzero if weight.name in reached else nonzero

    observe(model, batches, linear_weights(model), record)
    return reached


def movable_weights(model: nn.Module, x: Tensor) -> tuple[list[LinearWeight], dict[str, str]]:
    """The weights that a move may touch, each with its bias where that may move too, and why other parameters stay."""
    elsewhere = read_by_others(model, x[:1])
    parameters = dict(model.named_parameters())
    why_unmoved = {name: "frozen: requires_grad is False" for name, p in parameters.items() if not p.requires_grad}
    free = {name for name, p in parameters.items() if name not in why_unmoved and id(p) not in elsewhere}
    weights = []
    for weight in linear_weights(model):
        if not weight.tensor.is_floating_point():
            raise InputError(
                f"{weight.name} is {weight.tensor.dtype}; the inputs of a layer of whole numbers have no span that "
                "weights could be shifted beside. Convert the model with .float() first"
            )
        if weight.name not in free:
            continue
        if weight.tensor.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"{weight.name} is {weight.tensor.dtype}, in which a shift cannot be kept orthogonal to the layer's "
                "inputs; convert the model with .float() first"
            )
        weights.append(weight if weight.bias in free else replace(weight, bias=None))
    movable = {weight.name for weight in weights} | {weight.bias for weight in weights}
    for name, parameter in parameters.items():
        if name not in movable | why_unmoved.keys() and parameter.dim() > 1:
            why_unmoved[name] = (
                "not the weight of Linear, Conv or MultiheadAttention layers alone; or they differ in groups, or it "
                "shares memory with another"
            )
    return weights, why_unmoved


def read_by_others(model: nn.Module, x: Tensor) -> set[int]:
    """Ids of the trainable parameters that something beside the layers of `linear_weights` reads: these must stay."""
    working = copy_with_same_parameters(model)
    nodes: set[Node] = set()
    layers = {layer for weight in linear_weights(working) for layer in weight.layers}
    attention = {m.out_proj for m in working.modules() if _is_attention(m)}
    for layer in layers - attention:
        vars(layer)["forward"] = partial(_with_views, nodes, layer, layer.forward)
    try:
        with torch.enable_grad():
            output = working(x.clone())
    finally:
        for layer in layers - attention:
            del vars(layer)["forward"]
    if not isinstance(output, Tensor):
        raise InputError(f"the model returns a {type(output).__name__}; wrap it so that it returns the logits alone")
    return parameters_used_elsewhere(output.grad_fn, nodes)


def _with_views(nodes: set[Node], layer: nn.Module, forward: Any, *args: Any, **named: Any) -> Any:
    """Call `forward` with views of the layer's parameters, whose nodes distinguish these uses from all others."""
    modules = [layer, layer.out_proj] if isinstance(layer, nn.MultiheadAttention) else [layer]
    with parameters_as_views(modules, nodes):
        return forward(*args, **named)


def _record_layer(
    record: Record, layer: nn.Module, weight: LinearWeight, args: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
    """Show `record` what enters a layer: rows of the last axis, or patches of a convolution, some at a time."""
    x: Tensor = (args[0] if args else named["input"]).detach()
    if not isinstance(layer, _CONVOLUTIONS):
        record(weight, _columns(weight, x))
        return
    patches = _patches(layer, x)
    image_axis = 1 + len(layer.kernel_size)
    images_at_once = (_PIECE_ON_GPU if x.is_cuda else _PIECE) * patches.shape[image_axis] // max(1, patches.numel())
    for part in torch.split(patches, max(1, images_at_once), dim=image_axis):
        record(weight, _with_constant(weight, part.reshape(weight.groups, weight.d, -1)))


def _record_attention(
    record: Record,
    layer: nn.MultiheadAttention,
    weights: list[LinearWeight],
    args: tuple[Any, ...],
    named: Mapping[str, Any],
) -> None:
    """Show `record` what enters an attention layer's weights: queries, keys, values, and the input of `out_proj`."""
    inputs = [(args[i] if i < len(args) else named[part]) for i, part in enumerate(("query", "key", "value"))]
    for weight in weights:
        if weight.tensor is layer.out_proj.weight:
            # Its input is no module's input: with the identity as `out_proj` it is the output of the layer.
            attention, identity = copy(layer), copy(layer.out_proj)
            identity._parameters = {"weight": nn.Parameter(torch.eye(weight.d).to(weight.tensor)), "bias": None}
            attention._modules = {"out_proj": identity}
            record(weight, _columns(weight, attention.forward(*args, **named)[0]))
        elif weight.groups == 3:
            groups = [_columns(weight, x) for x in inputs]
            longest = max(columns.shape[2] for columns in groups)
            # Fewer keys than queries are padded with zeros, which do not change a second moment.
            record(weight, torch.cat([F.pad(columns, (0, longest - columns.shape[2])) for columns in groups]))
        else:
            weights_of_inputs = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
            for x, tensor in zip(inputs, weights_of_inputs, strict=True):
                if tensor is weight.tensor:
                    record(weight, _columns(weight, x))


def _columns(weight: LinearWeight, x: Tensor) -> Tensor:
    """The rows of the last axis of x as columns (1, d, positions)."""
    return _with_constant(weight, x.detach().reshape(1, -1, x.shape[-1]).mT)


def _with_constant(weight: LinearWeight, columns: Tensor) -> Tensor:
    """The columns with a constant 1 as last coordinate, by which a bias acts, if the weight has one."""
    return columns if weight.bias is None else F.pad(columns, (0, 0, 0, 1), value=1.0)


def _patches(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """The patches of a convolution as a view of the padded images: (channels, *kernel, images, *places).

    `F.unfold` gives the same numbers in two dimensions, and launches a kernel for every image on a GPU.
    """
    kernel: tuple[int, ...] = layer.kernel_size
    x = padded(layer, x if x.dim() == len(kernel) + 2 else x.unsqueeze(0))
    axes = list(zip(x.shape[2:], x.stride()[2:], kernel, layer.stride, layer.dilation, strict=True))
    places = [(size - dilation * (taps - 1) - 1) // stride + 1 for size, _, taps, stride, dilation in axes]
    between_taps = [step * dilation for _, step, _, _, dilation in axes]
    between_places = [step * stride for _, step, _, stride, _ in axes]
    return x.as_strided(
        (x.shape[1], *kernel, x.shape[0], *places),
        (x.stride(1), *between_taps, x.stride(0), *between_places),
        x.storage_offset(),
    )
