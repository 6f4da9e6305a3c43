"""How operations that change the shape of a tensor carry channels: flatten, sums over axes, transposition, chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .channel_operations import from_end
from .channel_values import Call, Channels, Fixed, Number, Tensorial, Value
from .channel_walk import Walk


def flatten(walk: Walk, call: Call) -> Value:
    """All axes from `start_dim` to the last as one."""
    module: Any = call.module
    start = module.start_dim if module is not None else call.argument(1, "start_dim", 0)
    end = module.end_dim if module is not None else call.argument(2, "end_dim", -1)
    x: Tensorial = call.args[0]
    return flattened(walk, call, x, start) if end == -1 else walk.unknown(call)


def reshape(walk: Walk, call: Call) -> Value:
    """x.view(x.size(0), -1), which is a flatten; any other shape pins."""
    x, *shape = call.args
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = list(shape[0])
    rows = shape[0] if len(shape) == 2 else None
    if isinstance(rows, Number) and isinstance(x, Channels | Fixed) and rows.batch_of is x:
        return flattened(walk, call, x, 1)
    return walk.unknown(call)


def flattened(walk: Walk, call: Call, x: Tensorial, start: Any) -> Value:
    """The axes from `start` on as one."""
    if isinstance(x, Fixed):
        return Fixed(x.reason, start + 1 if isinstance(start, int) and start >= 0 else None)
    if x.rank is None and start == 1 and x.axis == -1:
        return replace(x, rank=2, layout="whole" if x.layout == "plain" else x.layout)
    if x.rank is None or not isinstance(start, int) or start < 0:
        return walk.unknown(call)
    position = x.rank + x.axis
    if position < start:
        return replace(x, rank=start + 1, axis=position - start - 1)
    if x.rank == start + 1:
        return x
    if x.layout == "plain" and position == start:
        return replace(x, rank=start + 1, axis=-1, layout="each")
    if x.layout == "plain" and x.axis == -1:
        return replace(x, rank=start + 1, layout="whole")
    return walk.unknown(call)


def over_axes(walk: Walk, call: Call) -> Value:
    """mean, sum and amax over axes that are not the channels'."""
    x = call.args[0]
    axes, keep = call.argument(1, "dim"), call.argument(2, "keepdim", False)
    if not isinstance(x, Channels) or len(call.tensors()) != 1 or not isinstance(keep, bool):
        return walk.unknown(call)
    given = list(axes) if isinstance(axes, list | tuple) else [axes]
    removed = [from_end(axis, x.rank) for axis in given]
    if not removed or None in removed or x.axis in removed or x.layout != "plain":
        return walk.unknown(call)
    if keep:
        return x
    after = sum(axis is not None and axis > x.axis for axis in removed)
    return replace(x, axis=x.axis + after, rank=None if x.rank is None else x.rank - len(removed))


def transpose(walk: Walk, call: Call) -> Value:
    """Two axes exchanged."""
    x = call.args[0]
    if not isinstance(x, Channels) or x.layout != "plain":
        return walk.unknown(call)
    first, second = (from_end(call.argument(i, f"dim{i - 1}"), x.rank) for i in (1, 2))
    if first is None or second is None:
        return walk.unknown(call)
    return replace(x, axis={first: second, second: first}.get(x.axis, x.axis))


def permute(walk: Walk, call: Call) -> Value:
    """All axes in a new order."""
    x, *axes = call.args
    if len(axes) == 1 and isinstance(axes[0], list | tuple):
        axes = list(axes[0])
    if not isinstance(x, Channels) or x.layout != "plain" or not axes or call.named:
        return walk.unknown(call)
    places = [from_end(axis, len(axes)) for axis in axes]
    if None in places or x.rank not in (None, len(axes)):
        return walk.unknown(call)
    return replace(x, axis=places.index(x.axis) - len(axes), rank=len(axes))


def chunk(walk: Walk, call: Call) -> Value:
    """Equal parts of the channels, each with a list of its own."""
    x, count = call.args[0], call.argument(1, "chunks")
    if not isinstance(x, Channels) or x.layout != "plain" or not isinstance(count, int):
        return walk.unknown(call)
    width, rest = divmod(len(x.ids), count)
    if rest or width == 0 or from_end(call.argument(2, "dim", 0), x.rank) != x.axis:
        return walk.unknown(call)
    walk.splits.append((x.ids, count))
    return tuple(replace(x, ids=x.ids[i * width : (i + 1) * width]) for i in range(count))
