"""How each module, function and tensor method carries channels; what has no rule pins all it touches.

Where channels entering a layer y = W x + b have factors τ_in and those leaving τ_out, W becomes τ_out W τ_in⁻¹ and b
becomes τ_out b. Batch norm in eval mode, γ (x − m) / √(v + ε) + β, takes τ_in into m → τ_in m and
v → τ_in² (v + ε) − ε, and τ_out into γ, β. Norms that measure their input (GroupNorm, LayerNorm, RMSNorm) pin its
scales, and let those of their own affine free.

Of operations without weights, positively homogeneous ones, f(τx) = τ f(x) for τ > 0, that treat each channel alone
carry scales and order. Others that act on every entry alike carry the order and pin the scales. Sums tie their terms.

`channel_graph` looks a rule up by the operation in the tables at the end of the file. A rule takes the state of the
walk and the call, adds to the state what the call ties, pins and holds in its weights, and returns the call's result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .channels import Call, Channels, Fixed, Ids, Number, Tensorial, Value, Walk

Rule = Callable[[Walk, Call], Value]


def _unary(rule: Callable[[Walk, Call, Tensorial], Value]) -> Rule:
    """Make a rule for calls with one tensor among their arguments; calls with more are unknown and pin all of them."""

    def checked(walk: Walk, call: Call) -> Value:
        tensors = call.tensors()
        return rule(walk, call, tensors[0]) if len(tensors) == 1 else walk.unknown(call)

    return checked


# ------------------------------------------------------------------------------------------------ layers with weights

# Records where a layer's weights hold the entering channels; returns those of its output, the leaving ones.
_LayerRule = Callable[[Walk, Call, Ids], Ids]


def _layer_output(
    walk: Walk, call: Call, x: Tensorial, rule: _LayerRule, width: int, axis: int, rank: int | None, plain: bool = False
) -> Channels:
    """The output of a layer that reads `width` channels along `axis`; where x has them not there, or with `plain` has
    more than one position of each, all are pinned. `rule` makes the output's channels at the first call; a later call
    ties its inputs to the first's, since the weights have one τ_in.
    """
    fits = isinstance(x, Channels) and x.axis == axis and (x.layout == "plain" or not plain)
    entering = walk.entering(x, width, fits=fits, label=call.label)
    if call.path in walk.layers:
        walk.tie(walk.layers[call.path][0], entering)
    else:
        walk.layers[call.path] = entering, rule(walk, call, entering)
    return Channels(walk.layers[call.path][1], axis, rank)


@_unary
def _linear_layer(walk: Walk, call: Call, x: Tensorial) -> Value:
    return _layer_output(walk, call, x, _linear_weights, call.module.in_features, axis=-1, rank=x.rank)


@_unary
def _convolution(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Channels lie before the axes of the kernel, in the input and in the output."""
    axis = -1 - len(call.module.kernel_size)
    rule = _linear_weights if call.module.groups == 1 else _grouped_weights
    return _layer_output(walk, call, x, rule, call.module.in_channels, axis=axis, rank=1 - axis)


@_unary
def _batch_norm_layer(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Channels lie along axis 1; the kind of batch norm tells how many axes there are."""
    rank = {nn.BatchNorm2d: 4, nn.BatchNorm3d: 5}.get(type(call.module), x.rank)
    if rank is None and isinstance(x, Channels) and x.axis == -1:
        # BatchNorm1d takes two axes or three; what a Linear layer returned is taken to be (batch, features).
        rank = 2
    return _along_axis_1(walk, call, x, rank, call.module.num_features, _batch_norm_weights)


@_unary
def _group_norm_layer(walk: Walk, call: Call, x: Tensorial) -> Value:
    return _along_axis_1(walk, call, x, x.rank, call.module.num_channels, _measuring_norm_weights)


def _along_axis_1(walk: Walk, call: Call, x: Tensorial, rank: int | None, width: int, rule: _LayerRule) -> Value:
    """The output of a norm with `width` channels along axis 1, which counted from the end is 1 - rank."""
    if rank is None:
        return walk.unknown(call)
    return _layer_output(walk, call, x, rule, width, axis=1 - rank, rank=rank, plain=True)


@_unary
def _last_axis_norm(walk: Walk, call: Call, x: Tensorial) -> Value:
    """LayerNorm and RMSNorm; over several axes they have a weight for each entry, not for each channel."""
    if len(call.module.normalized_shape) != 1:
        return walk.unknown(call)
    return _layer_output(walk, call, x, _measuring_norm_weights, call.module.normalized_shape[0], axis=-1, rank=x.rank)


@_unary
def _sloped_relu(walk: Walk, call: Call, x: Tensorial) -> Value:
    """PReLU is homogeneous, whatever its slopes; slopes of single channels, along axis 1, follow their order."""
    width = call.module.num_parameters
    if walk.kind == "scale" or width == 1:
        return x
    axis = 0 if x.rank is None else 1 - x.rank  # Counted from the end none is 0: without a rank no channels fit.
    output = _layer_output(walk, call, x, _slope_weights, width, axis=axis, rank=x.rank, plain=True)
    fits = isinstance(x, Channels) and x.axis == axis and x.layout == "plain"
    return output if fits else walk.unknown(call)


def _linear_weights(walk: Walk, call: Call, entering: Ids) -> Ids:
    """Record that a weight reads the entering channels by its columns and makes new ones by its rows; returns these."""
    walk.record(call, "weight", entering, axis=1, power=-1)
    return _made_by_rows(walk, call, walk.fresh(len(call.module.weight)))


def _grouped_weights(walk: Walk, call: Call, entering: Ids) -> Ids:
    """Record that a grouped convolution's weight reads each group by its own block of rows; returns what these make."""
    groups = call.module.groups
    if call.module.in_channels > groups:
        leaving = walk.fresh(call.module.out_channels)
        walk.splits += [(entering, groups), (leaving, groups)]
        walk.record(call, "weight", entering, axis=1, power=-1, blocks=groups)
        return _made_by_rows(walk, call, leaving)
    # Depthwise: every input channel has kernels of its own, so outputs keep the order of the inputs.
    kernels = call.module.out_channels // groups
    read = tuple(channel for channel in entering for _ in range(kernels))
    if walk.kind == "order":
        return _made_by_rows(walk, call, read)
    leaving = walk.fresh(call.module.out_channels)
    walk.record(call, "weight", read, power=-1)
    return _made_by_rows(walk, call, leaving)


def _batch_norm_weights(walk: Walk, call: Call, entering: Ids) -> Ids:
    """Record that running statistics follow the entering channels; returns the leaving ones. Without statistics the
    norm measures each batch, which pins scales.
    """
    if call.module.running_var is not None:
        walk.record(call, "running_mean", entering)
        walk.record(call, "running_var", entering, power=2, offset=call.module.eps)
    elif walk.kind == "scale":
        walk.pin(entering, f"{call.label}, which measures each batch")
    if not walk.through_norm and walk.kind == "scale":
        walk.pin(entering, f"{call.label} (through_norm=False)")
    return _after_norm(walk, call, entering)


def _measuring_norm_weights(walk: Walk, call: Call, entering: Ids) -> Ids:
    """Pin the scales that a norm measures, and keep channels in GroupNorm's groups; returns the leaving ones."""
    if walk.kind == "scale":
        walk.pin(entering, call.label)
    elif isinstance(call.module, nn.GroupNorm):
        walk.splits.append((entering, call.module.num_groups))
    return _after_norm(walk, call, entering)


def _after_norm(walk: Walk, call: Call, entering: Ids) -> Ids:
    """The channels that leave a norm: in the order of those that enter, with scales of their own if it has a weight."""
    leaving = entering if walk.kind == "order" else walk.fresh(len(entering))
    if call.module.weight is not None:
        return _made_by_rows(walk, call, leaving)
    if walk.kind == "scale":
        walk.pin(leaving, f"{call.label}, which has no weight to rescale")
    return leaving


def _slope_weights(walk: Walk, call: Call, entering: Ids) -> Ids:
    """Record that a PReLU has a slope for each channel; returns the channels as they enter."""
    walk.record(call, "weight", entering)
    return entering


def _made_by_rows(walk: Walk, call: Call, leaving: Ids) -> Ids:
    """Record that row i of the layer's weight and bias makes channel `leaving[i]` of its output; returns `leaving`."""
    walk.record(call, "weight", leaving)
    if getattr(call.module, "bias", None) is not None:
        walk.record(call, "bias", leaving)
    return leaving


# ------------------------------------------------------------------------------------------------ entry by entry


@_unary
def _homogeneous(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Carries scales and order from its input to its output."""
    return x


@_unary
def _order_only(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Acts on every entry alike, or alike along any axis, but is not homogeneous: carries order and pins scales."""
    if walk.kind == "scale" and isinstance(x, Channels):
        walk.pin(x.ids, call.label)
    return x


def _sum(walk: Walk, call: Call) -> Value:
    """What a sum returns; its terms are tied, since they must have one scale and one order."""
    left, right = call.argument(0, "input"), call.argument(1, "other")
    tensors = call.tensors()
    if len(tensors) == 1 and tensors[0] in (left, right):
        return _order_only(walk, call)
    if len(tensors) == 2 and isinstance(left, Channels) and isinstance(right, Channels):
        return _join_elementwise(walk, call.label, left, right)
    return walk.unknown(call)


def _product(walk: Walk, call: Call) -> Value:
    """What a product returns: by a number it is homogeneous; by a tensor that stays, the left one's scales pass."""
    left, right = call.argument(0, "input"), call.argument(1, "other")
    tensors = call.tensors()
    if len(tensors) == 1 and tensors[0] in (left, right):
        return tensors[0]
    if len(tensors) != 2 or not isinstance(left, Channels):
        return walk.unknown(call)
    if walk.kind == "order":
        return _join_elementwise(walk, call.label, left, right) if isinstance(right, Channels) else walk.unknown(call)
    # fx does not distinguish x *= y from x * y. So y must stay: an alias of x would change with it.
    right_stays = isinstance(right, Fixed) or (isinstance(right, Channels) and all(map(walk.reasons, right.ids)))
    if right_stays and left.layout == "plain" and len(left.ids) > 1:
        return left if isinstance(right, Channels) and right.rank == left.rank else replace(left, rank=None)
    return walk.unknown(call)


@_unary
def _quotient(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Over a number homogeneous."""
    return x if x is call.argument(0, "input") else walk.unknown(call)


def _concatenation(walk: Walk, call: Call) -> Value:
    """What torch.cat returns: along the channels one list after the other; along another axis the parts are tied."""
    parts, axis = call.argument(0, "tensors"), call.argument(1, "dim", call.named.get("axis", 0))
    if not isinstance(parts, list | tuple) or not all(isinstance(p, Channels) and p.layout == "plain" for p in parts):
        return walk.unknown(call)
    first: Channels = parts[0]
    concatenated = _counted_from_end(axis, first.rank)
    if concatenated is None or any((p.axis, p.rank) != (first.axis, first.rank) for p in parts):
        return walk.unknown(call)
    if concatenated == first.axis:
        return replace(first, ids=tuple(channel for part in parts for channel in part.ids))
    if any(len(p.ids) != len(first.ids) for p in parts):
        return walk.unknown(call)
    for part in parts[1:]:
        walk.tie(first.ids, part.ids)
    return first


def _join_elementwise(walk: Walk, label: str, left: Channels, right: Channels) -> Tensorial:
    """Tie the channels of two tensors that are added or multiplied entry by entry, and return those of the result.

    Where a single channel is broadcast over many, all of them take its scale. It has no order to keep: every entry of
    the result holds it, in whatever order the others are.
    """
    wider, narrower = (left, right) if len(left.ids) >= len(right.ids) else (right, left)
    same_width = len(wider.ids) == len(narrower.ids)
    broadcasts = len(narrower.ids) == 1 and narrower.layout == wider.layout == "plain"
    if (left.axis, left.layout) != (right.axis, right.layout) or not (same_width or broadcasts):
        walk.pin(left.ids + right.ids, f"{label} of other channels")
        return Fixed(label)
    if same_width:
        walk.tie(wider.ids, narrower.ids)
    elif walk.kind == "scale":
        walk.tie(wider.ids, narrower.ids * len(wider.ids))
    return wider if left.rank == right.rank else replace(wider, rank=None)


# ------------------------------------------------------------------------------------------------ axes and shapes


def _over_positions(count: int) -> Rule:
    """Pooling: homogeneous over the last `count` axes, which must not hold the channels."""

    @_unary
    def rule(walk: Walk, call: Call, x: Tensorial) -> Value:
        indices = call.named.get("return_indices", getattr(call.module, "return_indices", False))
        return x if isinstance(x, Channels) and x.axis == -1 - count and not indices else walk.unknown(call)

    return rule


@_unary
def _over_axes(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Channels pass mean, sum and amax over other axes than theirs, which moves nearer to the end by those removed."""
    axes, keep = call.argument(1, "dim"), call.argument(2, "keepdim", False)
    if not isinstance(x, Channels) or not isinstance(keep, bool):
        return walk.unknown(call)
    removed = [_counted_from_end(axis, x.rank) for axis in (axes if isinstance(axes, list | tuple) else [axes])]
    if not removed or None in removed or x.axis in removed or x.layout != "plain":
        return walk.unknown(call)
    if keep:
        return x
    removed_behind = sum(axis is not None and axis > x.axis for axis in removed)
    return replace(x, axis=x.axis + removed_behind, rank=None if x.rank is None else x.rank - len(removed))


@_unary
def _flatten(walk: Walk, call: Call, x: Tensorial) -> Value:
    """What nn.Flatten and torch.flatten return: known where they reach to the last axis."""
    start = call.module.start_dim if call.module is not None else call.argument(1, "start_dim", 0)
    end = call.module.end_dim if call.module is not None else call.argument(2, "end_dim", -1)
    return _flattened_from(start, walk, call, x) if end == -1 else walk.unknown(call)


@_unary
def _reshape(walk: Walk, call: Call, x: Tensorial) -> Value:
    """x.view(x.size(0), -1) is a flatten; any other shape pins."""
    shape = call.args[1:]
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    rows = shape[0] if len(shape) == 2 else None
    keeps_batch = isinstance(rows, Number) and rows.batch_of is x
    return _flattened_from(1, walk, call, x) if keeps_batch else walk.unknown(call)


def _flattened_from(start: Any, walk: Walk, call: Call, x: Tensorial) -> Value:
    """The tensor with its axes from `start` on made one, which leaves `start` + 1 axes."""
    if isinstance(x, Fixed):
        return Fixed(x.reason, rank=start + 1 if isinstance(start, int) and start >= 0 else None)
    if x.rank is None and start == 1 and x.axis == -1:
        return replace(x, rank=2, layout="whole" if x.layout == "plain" else x.layout)
    if x.rank is None or not isinstance(start, int) or start < 0:
        return walk.unknown(call)
    from_front = x.rank + x.axis
    if from_front < start:  # The channels' axis is not among those flattened.
        return replace(x, rank=start + 1, axis=from_front - start - 1)
    if x.rank == start + 1:  # There is one axis already.
        return x
    if x.layout == "plain" and from_front == start:  # All positions of a channel come together.
        return replace(x, rank=start + 1, axis=-1, layout="each")
    if x.layout == "plain" and x.axis == -1:  # All channels of a position come together.
        return replace(x, rank=start + 1, layout="whole")
    return walk.unknown(call)


@_unary
def _transpose(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Channels go with their axis where two axes change places."""
    first, second = (_counted_from_end(call.argument(i, f"dim{i - 1}"), x.rank) for i in (1, 2))
    if not isinstance(x, Channels) or x.layout != "plain" or first is None or second is None:
        return walk.unknown(call)
    return replace(x, axis={first: second, second: first}.get(x.axis, x.axis))


@_unary
def _permute(walk: Walk, call: Call, x: Tensorial) -> Value:
    """Channels go with their axis where all axes are put in another order."""
    axes = call.args[1:]
    if len(axes) == 1 and isinstance(axes[0], list | tuple):
        axes = tuple(axes[0])
    if not isinstance(x, Channels) or x.layout != "plain" or not axes or call.named:
        return walk.unknown(call)
    sources = [_counted_from_end(axis, len(axes)) for axis in axes]
    if None in sources or x.rank not in (None, len(axes)):
        return walk.unknown(call)
    return replace(x, axis=sources.index(x.axis) - len(axes), rank=len(axes))


@_unary
def _chunk(walk: Walk, call: Call, x: Tensorial) -> Value:
    """What torch.chunk along the channels returns: a tensor with each of the equal parts of their list."""
    count = call.argument(1, "chunks")
    if not isinstance(x, Channels) or x.layout != "plain" or not isinstance(count, int):
        return walk.unknown(call)
    width, rest = divmod(len(x.ids), count)
    if rest or width == 0 or _counted_from_end(call.argument(2, "dim", 0), x.rank) != x.axis:
        return walk.unknown(call)
    walk.splits.append((x.ids, count))
    return tuple(replace(x, ids=x.ids[i * width : (i + 1) * width]) for i in range(count))


def _counted_from_end(axis: Any, rank: int | None) -> int | None:
    """An axis counted from the end, as `Channels.axis` is; None where the rank would have to be known for that."""
    if not isinstance(axis, int):
        return None
    if axis < 0:
        return axis
    return None if rank is None else axis - rank


@_unary
def _size(walk: Walk, call: Call, x: Tensorial) -> Value:
    """What x.size(), x.size(i) and x.dim() return: numbers that no move changes."""
    axis = call.argument(1, "dim")
    return Number(shape_of=x) if axis is None else Number(batch_of=x if axis == 0 else None)


@_unary
def _attribute(walk: Walk, call: Call, x: Tensorial) -> Value:
    """What x.shape, x.dtype and the like return: numbers that no move changes."""
    if call.args[1] == "shape":
        return Number(shape_of=x)
    return Number() if call.args[1] in ("dtype", "device", "ndim") else walk.unknown(call)


def _item(walk: Walk, call: Call) -> Value:
    """What container[index] returns: one size of a shape, or one of several tensors."""
    container, index = call.args
    if isinstance(container, Number):
        return Number(batch_of=container.shape_of if isinstance(index, int) and index == 0 else None)
    if isinstance(container, tuple) and isinstance(index, int):
        part: Value = container[index]
        return part
    return walk.unknown(call)


# ------------------------------------------------------------------------------------------------ tables of rules

# Modules without a parameter for each channel.
_HOMOGENEOUS = (
    nn.ReLU, nn.LeakyReLU, nn.RReLU, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
_ORDER_ONLY = (
    nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Mish, nn.ReLU6,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink,
    nn.Threshold, nn.Softmax, nn.LogSoftmax,
)  # fmt: skip
# Functions of torch and torch.nn.functional, and methods of tensors.
_NAMED: dict[str, Rule] = dict.fromkeys((
    "relu", "relu_", "leaky_relu", "leaky_relu_", "rrelu", "abs", "neg", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "alpha_dropout", "feature_alpha_dropout", "contiguous", "clone", "detach", "float", "double",
), _homogeneous) | dict.fromkeys((
    "gelu", "silu", "sigmoid", "tanh", "elu", "selu", "celu", "softplus", "softsign", "mish", "relu6", "hardswish",
    "hardsigmoid", "hardtanh", "logsigmoid", "softmax", "log_softmax", "exp", "square", "clamp", "sigmoid_", "tanh_",
), _order_only) | {
    "add": _sum, "sub": _sum, "mul": _product, "div": _quotient, "mean": _over_axes, "sum": _over_axes,
    "amax": _over_axes, "flatten": _flatten, "reshape": _reshape, "transpose": _transpose, "permute": _permute,
    "chunk": _chunk,
}  # fmt: skip
_POOLS = {"MaxPool": "max_pool", "AvgPool": "avg_pool"}
_POOLS |= {f"Adaptive{name}": f"adaptive_{function}" for name, function in _POOLS.items()}
_POOL_FUNCTIONS = {f"{pool}{d}d": _over_positions(d) for pool in _POOLS.values() for d in (1, 2, 3)}

MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(_HOMOGENEOUS, _homogeneous),
    **dict.fromkeys(_ORDER_ONLY, _order_only),
    **{getattr(nn, f"{pool}{d}d"): _over_positions(d) for pool in _POOLS for d in (1, 2, 3)},
    nn.Flatten: _flatten,
    nn.Linear: _linear_layer,
    nn.PReLU: _sloped_relu,
    nn.GroupNorm: _group_norm_layer,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm_layer),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), _last_axis_norm),
}
METHODS: dict[str, Rule] = {
    **_NAMED, "add_": _sum, "sub_": _sum, "mul_": _product, "div_": _quotient, "size": _size, "dim": _size,
    "view": _reshape,
}  # fmt: skip
FUNCTIONS: dict[Any, Rule] = {
    getattr(home, name): rule
    for name, rule in (_NAMED | _POOL_FUNCTIONS).items()
    for home in (torch, F)
    if hasattr(home, name)
}
FUNCTIONS |= dict.fromkeys((operator.add, operator.iadd, operator.sub), _sum)
FUNCTIONS |= dict.fromkeys((operator.mul, operator.imul), _product)
FUNCTIONS |= dict.fromkeys((torch.cat, torch.concat), _concatenation)
FUNCTIONS |= {operator.neg: _homogeneous, operator.truediv: _quotient}
FUNCTIONS |= {getattr: _attribute, operator.getitem: _item}
