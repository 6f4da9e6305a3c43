"""How layers with weights carry channels: y = W x + b, and the norms.

Where channels entering have factors τ_in and those leaving τ_out, W becomes τ_out W τ_in⁻¹ and b becomes τ_out b. Batch
norm in eval mode, γ (x − m) / √(v + ε) + β, takes τ_in into m → τ_in m and v → τ_in² (v + ε) − ε, and τ_out into γ, β.
Norms that measure their input (GroupNorm, LayerNorm, RMSNorm) pin its scales, and let those of their own affine free.
A layer called twice is read once and its inputs tied: the weights can follow only one τ_in and one τ_out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .channel_values import Call, Channels, Tensorial
from .channel_walk import Use, Walk

Ids = tuple[int, ...]
# From the channels that enter to the channels that leave, once a layer.
Body = Callable[[Walk, Call, Any, Ids], Ids]


def linear_layer(walk: Walk, call: Call, x: Tensorial) -> Channels:
    """Linear: channels along the last axis."""
    module: Any = call.module
    fits = isinstance(x, Channels) and x.axis == -1
    out = _once(walk, call, x, module.in_features, fits=fits, body=_linear)
    return Channels(out, -1, x.rank)


def convolution(walk: Walk, call: Call, x: Tensorial) -> Channels:
    """Conv1d, Conv2d, Conv3d, grouped or not: channels before the positions."""
    module: Any = call.module
    axis = -1 - len(module.kernel_size)
    fits = isinstance(x, Channels) and x.axis == axis
    out = _once(walk, call, x, module.in_channels, fits=fits, body=_linear if module.groups == 1 else _grouped)
    return Channels(out, axis, 1 - axis)


def batch_norm(walk: Walk, call: Call, x: Tensorial) -> Tensorial:
    """BatchNorm1d, 2d, 3d: channels along axis 1."""
    module: Any = call.module
    rank = {nn.BatchNorm2d: 4, nn.BatchNorm3d: 5}.get(type(module), x.rank)
    if rank is None and isinstance(x, Channels) and x.axis == -1:
        # BatchNorm1d takes two axes or three; what a Linear layer returned is taken to be (batch, features).
        rank = 2
    if rank is None:
        return walk.unknown(call)
    fits = isinstance(x, Channels) and x.axis == 1 - rank and x.layout == "plain"
    out = _once(walk, call, x, module.num_features, fits=fits, body=_batch_norm)
    return Channels(out, 1 - rank, rank)


def group_norm(walk: Walk, call: Call, x: Tensorial) -> Tensorial:
    """GroupNorm: channels along axis 1."""
    module: Any = call.module
    if x.rank is None:
        return walk.unknown(call)
    fits = isinstance(x, Channels) and x.axis == 1 - x.rank and x.layout == "plain"
    out = _once(walk, call, x, module.num_channels, fits=fits, body=_measuring_norm)
    return Channels(out, 1 - x.rank, x.rank)


def last_axis_norm(walk: Walk, call: Call, x: Tensorial) -> Tensorial:
    """LayerNorm and RMSNorm over the last axis alone."""
    module: Any = call.module
    if len(module.normalized_shape) != 1:
        return walk.unknown(call)
    fits = isinstance(x, Channels) and x.axis == -1
    out = _once(walk, call, x, module.normalized_shape[0], fits=fits, body=_measuring_norm)
    return Channels(out, -1, x.rank)


def sloped_relu(walk: Walk, call: Call, x: Tensorial) -> Tensorial:
    """PReLU: homogeneous, whatever its slopes; slopes of single channels, along axis 1, follow their order."""
    module: Any = call.module
    if walk.kind == "scale" or module.num_parameters == 1:
        return x
    fits = isinstance(x, Channels) and x.rank is not None and x.axis == 1 - x.rank and x.layout == "plain"
    out = _once(walk, call, x, module.num_parameters, fits=fits, body=_slopes)
    return Channels(out, x.axis, x.rank) if isinstance(x, Channels) and fits else walk.unknown(call)


def _once(walk: Walk, call: Call, x: Tensorial, width: int, *, fits: bool, body: Body) -> Ids:
    entering = walk.entering(x, width, fits=fits, label=call.label)
    known = walk.layers.get(call.path)
    if known is None:
        known = walk.layers[call.path] = (entering, body(walk, call, call.module, entering))
    else:
        walk.ties.tie(known[0], entering)
    return known[1]


def _linear(walk: Walk, call: Call, module: Any, entering: Ids) -> Ids:
    leaving = walk.ties.fresh(len(module.weight))
    walk.uses.append(Use(f"{call.path}.weight", 1, entering, power=-1))
    _affine(walk, call, module, leaving)
    return leaving


def _grouped(walk: Walk, call: Call, module: Any, entering: Ids) -> Ids:
    groups, name = module.groups, f"{call.path}.weight"
    if module.in_channels > groups:
        leaving = walk.ties.fresh(module.out_channels)
        walk.splits += [(entering, groups), (leaving, groups)]
        walk.uses.append(Use(name, 1, entering, power=-1, blocks=groups))
        _affine(walk, call, module, leaving)
        return leaving
    times = module.out_channels // groups
    read = tuple(channel for channel in entering for _ in range(times))
    if walk.kind == "order":
        _affine(walk, call, module, read)
        return read
    leaving = walk.ties.fresh(module.out_channels)
    walk.uses.append(Use(name, 0, read, power=-1))
    _affine(walk, call, module, leaving)
    return leaving


def _batch_norm(walk: Walk, call: Call, module: Any, entering: Ids) -> Ids:
    if module.running_var is not None:
        walk.uses.append(Use(f"{call.path}.running_mean", 0, entering))
        walk.uses.append(Use(f"{call.path}.running_var", 0, entering, power=2, offset=module.eps))
    elif walk.kind == "scale":
        walk.ties.pin(entering, f"{call.label}, which measures each batch")
    if not walk.through_norm and walk.kind == "scale":
        walk.ties.pin(entering, f"{call.label} (through_norm=False)")
    return _after_norm(walk, call, module, entering)


def _measuring_norm(walk: Walk, call: Call, module: Any, entering: Ids) -> Ids:
    if walk.kind == "scale":
        walk.ties.pin(entering, call.label)
    elif isinstance(module, nn.GroupNorm):
        walk.splits.append((entering, module.num_groups))
    return _after_norm(walk, call, module, entering)


def _after_norm(walk: Walk, call: Call, module: Any, entering: Ids) -> Ids:
    affine = module.weight is not None
    leaving = entering if walk.kind == "order" else walk.ties.fresh(len(entering))
    if affine:
        _affine(walk, call, module, leaving)
    elif walk.kind == "scale":
        walk.ties.pin(leaving, f"{call.label}, which has no weight to rescale")
    return leaving


def _slopes(walk: Walk, call: Call, module: Any, entering: Ids) -> Ids:
    walk.uses.append(Use(f"{call.path}.weight", 0, entering))
    return entering


def _affine(walk: Walk, call: Call, module: Any, leaving: Ids) -> None:
    walk.uses.append(Use(f"{call.path}.weight", 0, leaving))
    if getattr(module, "bias", None) is not None:
        walk.uses.append(Use(f"{call.path}.bias", 0, leaving))
