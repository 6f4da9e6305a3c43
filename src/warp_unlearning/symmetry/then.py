"""One move after another as a single move, merged where it can be, so that many moves cost no more than one."""

from __future__ import annotations

from torch import Tensor

from .compose import ComposedMove
from .move import AxisMap, ChannelMove, MomentumReset, Move, TensorMap, Translation


def then(first: Move | None, second: Move) -> Move:
    """`second` after `first`; None is no move. Shifts add up, and maps along the same axis are multiplied out."""
    second = second.move if isinstance(second, MomentumReset) else second
    if first is None:
        return second
    if isinstance(first, ComposedMove):
        return ComposedMove((*first.moves[:-1], *_flat(then(first.moves[-1], second))))
    if isinstance(second, ComposedMove):
        merged: Move = first
        for move in second.moves:
            merged = then(merged, move)
        return merged
    if isinstance(first, Translation) and isinstance(second, Translation):
        return _sum(first, second)
    if isinstance(first, ChannelMove) and isinstance(second, ChannelMove):
        return _product(first, second)
    return ComposedMove((first, second))


def _flat(move: Move) -> tuple[Move, ...]:
    return move.moves if isinstance(move, ComposedMove) else (move,)


def _sum(first: Translation, second: Translation) -> Translation:
    shifts: dict[str, Tensor] = dict(first.shifts)
    for name, shift in second.shifts.items():
        shifts[name] = shifts[name] + shift if name in shifts else shift
    return Translation(shifts)


def _product(first: ChannelMove, second: ChannelMove) -> ChannelMove:
    axes: dict[str, tuple[TensorMap, ...]] = dict(first.axes)
    for name, maps in second.axes.items():
        for one in maps:
            axes[name] = _appended(axes.get(name, ()), one)
    return ChannelMove(axes, {**first.offsets, **second.offsets})


def _appended(maps: tuple[TensorMap, ...], last: TensorMap) -> tuple[TensorMap, ...]:
    """Maps of different axes commute, so that one along an axis joins the map of that axis, if all are of this kind."""
    if not isinstance(last, AxisMap) or not all(isinstance(one, AxisMap) for one in maps):
        return (*maps, last)
    for place, one in enumerate(maps):
        if isinstance(one, AxisMap) and one.axis == last.axis:
            return (*maps[:place], _joined(one, last), *maps[place + 1 :])
    return (*maps, last)


def _joined(first: AxisMap, second: AxisMap) -> AxisMap:
    """New entry i is s₂[i] s₁[o₂[i]] times old entry o₁[o₂[i]]."""
    order, scale = second.order, second.scale
    if first.order is not None:
        order = first.order if second.order is None else first.order[second.order]
    if first.scale is not None:
        earlier = first.scale if second.order is None else first.scale[second.order]
        scale = earlier if scale is None else earlier * scale
    return AxisMap(first.axis, order, scale)
