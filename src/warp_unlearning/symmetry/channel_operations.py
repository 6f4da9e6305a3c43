"""How operations without weights carry channels.

Positively homogeneous ones, f(τx) = τ f(x) for τ > 0, that treat each channel alone carry scales and order. Others that
act on every entry alike carry the order and pin the scales. Sums tie their terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .channel_values import Call, Channels, Fixed, Number, Tensorial, Value
from .channel_walk import Walk

Rule = Callable[[Walk, Call], Value]


def homogeneous(walk: Walk, call: Call) -> Value:
    """Each entry by itself, and f(τx) = τ f(x)."""
    tensors = call.tensors()
    return tensors[0] if len(tensors) == 1 else walk.unknown(call)


def same_for_all(walk: Walk, call: Call) -> Value:
    """Alike for every entry or along any axis, but not homogeneous."""
    tensors = call.tensors()
    if len(tensors) != 1:
        return walk.unknown(call)
    if walk.kind == "scale":
        walk.pin(tensors[0], call.label)
    return tensors[0]


def over_positions(count: int) -> Rule:
    """Homogeneous over the last `count` axes, which must not hold the channels: pooling."""

    def rule(walk: Walk, call: Call) -> Value:
        tensors = call.tensors()
        indices = call.named.get("return_indices", getattr(call.module, "return_indices", False))
        x = tensors[0] if len(tensors) == 1 else None
        if isinstance(x, Channels) and x.axis == -1 - count and not indices:
            return x
        return walk.unknown(call)

    return rule


def addition(walk: Walk, call: Call) -> Value:
    """X + y, x − y: the terms have one scale and one order."""
    left, right = call.argument(0, "input"), call.argument(1, "other")
    tensors = call.tensors()
    if len(tensors) == 1 and tensors[0] in (left, right):
        return same_for_all(walk, call)
    if len(tensors) == 2 and isinstance(left, Channels) and isinstance(right, Channels):
        return tied(walk, call.label, left, right)
    return walk.unknown(call)


def product(walk: Walk, call: Call) -> Value:
    """X · y: with a number homogeneous; with a tensor that stays, the scales of x pass."""
    left, right = call.argument(0, "input"), call.argument(1, "other")
    tensors = call.tensors()
    if len(tensors) == 1 and tensors[0] in (left, right):
        return tensors[0]
    if len(tensors) != 2 or not isinstance(left, Channels):
        return walk.unknown(call)
    if walk.kind == "order":
        return tied(walk, call.label, left, right) if isinstance(right, Channels) else walk.unknown(call)
    # fx does not tell x *= y from x * y: where x stays and y does not, an alias of x would change with y.
    stays = isinstance(right, Fixed) or (isinstance(right, Channels) and walk.is_pinned(right))
    if stays and left.layout == "plain" and len(left.ids) > 1:
        return left if isinstance(right, Channels) and right.rank == left.rank else replace(left, rank=None)
    return walk.unknown(call)


def quotient(walk: Walk, call: Call) -> Value:
    """X / number."""
    tensors = call.tensors()
    return tensors[0] if len(tensors) == 1 and tensors[0] is call.argument(0, "input") else walk.unknown(call)


def concatenation(walk: Walk, call: Call) -> Value:
    """Along the channels one list after the other; along another axis the parts are tied."""
    parts, axis = call.argument(0, "tensors"), call.argument(1, "dim", call.named.get("axis", 0))
    if not isinstance(parts, list | tuple) or not all(isinstance(p, Channels) and p.layout == "plain" for p in parts):
        return walk.unknown(call)
    first: Channels = parts[0]
    where = from_end(axis, first.rank)
    if where is None or any((p.axis, p.rank) != (first.axis, first.rank) for p in parts):
        return walk.unknown(call)
    if where == first.axis:
        return replace(first, ids=tuple(channel for part in parts for channel in part.ids))
    if any(len(p.ids) != len(first.ids) for p in parts):
        return walk.unknown(call)
    for part in parts[1:]:
        walk.ties.tie(first.ids, part.ids)
    return first


def tied(walk: Walk, label: str, left: Channels, right: Channels) -> Tensorial:
    """Two tensors of one shape, or of two that broadcast, joined entry by entry."""
    long, short = (left, right) if len(left.ids) >= len(right.ids) else (right, left)
    one = len(short.ids) == 1 and short.layout == long.layout == "plain"
    if (left.axis, left.layout) != (right.axis, right.layout) or (len(long.ids) != len(short.ids) and not one):
        walk.pin(left, f"{label} of other channels")
        walk.pin(right, f"{label} of other channels")
        return Fixed(label)
    if len(long.ids) == len(short.ids):
        walk.ties.tie(long.ids, short.ids)
    elif walk.kind == "scale":
        walk.ties.tie(long.ids, short.ids * len(long.ids))
    return long if left.rank == right.rank else replace(long, rank=None)


def size(walk: Walk, call: Call) -> Value:
    """x.size(), x.size(i), x.dim(): numbers that no move changes."""
    x: Tensorial = call.args[0]
    which = call.argument(1, "dim")
    return Number(shape_of=x) if which is None else Number(batch_of=x if which == 0 else None)


def attribute(walk: Walk, call: Call) -> Value:
    """x.shape and the like."""
    if call.args[1] == "shape":
        return Number(shape_of=call.args[0])
    return Number() if call.args[1] in ("dtype", "device", "ndim") else walk.unknown(call)


def item(walk: Walk, call: Call) -> Value:
    """One size of a shape."""
    whole, index = call.args
    if isinstance(whole, Number):
        return Number(batch_of=whole.shape_of if isinstance(index, int) and index == 0 else None)
    if isinstance(whole, tuple) and isinstance(index, int):
        part: Value = whole[index]
        return part
    return walk.unknown(call)


def from_end(axis: Any, rank: int | None) -> int | None:
    """An axis counted from the end; nothing where the number of axes would have to be known."""
    if not isinstance(axis, int):
        return None
    if axis < 0:
        return axis
    return None if rank is None else axis - rank
