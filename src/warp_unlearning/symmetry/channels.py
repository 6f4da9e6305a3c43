"""The state of a walk over a traced network: the channels of each value, which of them are tied or pinned, and where
they stand in the weights. `channel_graph` walks, and the rules of `channel_rules` fill in the state.

Walks are of two kinds. For `scale`, channels are tied that must be multiplied by the same factor τ > 0, and pinned by
whatever is not homogeneous. For `order`, channels are tied that must stand in the same order, and pinned by whatever
knows one position from another. Batch norm, say, ties the orders of what enters and leaves; GELU pins scales alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["scale", "order"]
Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Channels:
    """A tensor with the channels `ids` along `axis`; `rank` axes in all where that is known. The axis is counted from
    the end (-1 is the last), since how many axes come before may be unknown.

    A flattened tensor holds several positions of every channel along its last axis: `each` as (channel, position),
    `whole` as (position, channel). How many is seen where a layer of known width reads it.
    """

    ids: Ids
    axis: int
    rank: int | None
    layout: Literal["plain", "each", "whole"] = "plain"

    def spread_over(self, width: int) -> Ids | None:
        """The channel of each of `width` entries along the axis; None where they do not fit."""
        times, rest = divmod(width, len(self.ids))
        if rest or times == 0 or (self.layout == "plain" and times != 1):
            return None
        if self.layout == "each":
            return tuple(channel for channel in self.ids for _ in range(times))
        return self.ids * times


@dataclass(frozen=True, eq=False)
class Fixed:
    """A tensor whose entries all stay what and where they are, because of `reason`."""

    reason: str
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class Number:
    """A number: the shape of the tensor `shape_of`, the batch size of `batch_of`, or with both None another one."""

    shape_of: Channels | Fixed | None = None
    batch_of: Channels | Fixed | None = None


Tensorial = Channels | Fixed
Value = Channels | Fixed | Number | tuple[Channels, ...]


@dataclass(frozen=True)
class Call:
    """One operation of the traced network, with values in the place of its tensors: `label` names it in reports, `args`
    and `named` are its arguments; a layer's call has the layer's `path` and `module` too.
    """

    label: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    path: str = ""
    module: Any = None

    def tensors(self) -> list[Tensorial]:
        """Every tensor among the arguments, however deep."""
        return list(_tensors((self.args, self.named)))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[position] if len(self.args) > position else self.named.get(name, default)


@dataclass(frozen=True)
class Use:
    """Channels along one axis of the state tensor `name`; entry i is multiplied by τ(ids[i]) to the `power`: 1 where
    the tensor makes the channels, -1 where it reads them, 2 in a variance, to which `offset` is added for the while.

    With `blocks` above 1 the ids run through the blocks of a grouped convolution, each with its own part of axis 1.
    """

    name: str
    axis: int
    ids: Ids
    power: int = 1
    offset: float = 0.0
    blocks: int = 1


@dataclass
class Walk:
    """The state of one walk, to which the rules of operations add.

    Every channel of every tensor is a number. Classes of tied channels are a union-find, and remember what pinned them.
    `uses` say where channels stand in the weights; `splits` are lists of channels that are cut in so many parts;
    `layers` holds the input and output channels by layer. `through_norm` lets scales pass batch norm.
    """

    kind: Kind
    through_norm: bool = True
    uses: list[Use] = field(default_factory=list)
    splits: list[tuple[Ids, int]] = field(default_factory=list)
    layers: dict[str, tuple[Ids, Ids]] = field(default_factory=dict)
    _parent: list[int] = field(default_factory=list)
    _reasons: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def fresh(self, count: int) -> Ids:
        """New channels, tied to no others."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return tuple(range(first, first + count))

    def record(self, call: Call, tensor: str, ids: Ids, *, axis: int = 0, **more: Any) -> None:
        """Note that the called layer's tensor holds the channels `ids` along `axis`; `more` as the fields of `Use`."""
        self.uses.append(Use(f"{call.path}.{tensor}", axis, ids, **more))

    def root(self, channel: int) -> int:
        """The channel that stands for all those tied to this one, found by links that get shorter on the way."""
        parent = self._parent
        while parent[channel] != channel:
            parent[channel] = parent[parent[channel]]
            channel = parent[channel]
        return channel

    def roots(self) -> list[int]:
        """The root of every channel."""
        return [self.root(channel) for channel in range(len(self._parent))]

    def tie(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Join each channel of `left` and its counterpart of `right` in one class, whose members all change alike."""
        for first, second in zip(left, right, strict=True):
            low, high = sorted((self.root(first), self.root(second)))
            if low != high:
                self._parent[high] = low
                reasons = dict.fromkeys((*self._reasons.get(low, ()), *self._reasons.pop(high, ())))
                if reasons:
                    self._reasons[low] = tuple(reasons)

    def pin(self, channels: Iterable[int], reason: str) -> None:
        """Keep these channels and all tied to them as they are, because of `reason`, which reports tell."""
        for channel in channels:
            root = self.root(channel)
            reasons = self._reasons.get(root, ())
            if reason not in reasons:
                self._reasons[root] = (*reasons, reason)

    def reasons(self, channel: int) -> tuple[str, ...]:
        """What pinned the channel; empty where it is free."""
        return self._reasons.get(self.root(channel), ())

    def unknown(self, call: Call) -> Fixed:
        """Pin all channels that an operation without a rule reads; returns its result, which is fixed too."""
        tensors = call.tensors()
        for value in tensors:
            if isinstance(value, Channels):
                self.pin(value.ids, call.label)
        return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], Fixed) else Fixed(call.label)

    def entering(self, value: Tensorial, width: int, *, fits: bool, label: str) -> Ids:
        """The channel of each of `width` entries that the layer `label` reads. Without `fits` the value's channels lie
        along another axis: they are pinned, and so are the new ones that are returned.
        """
        ids = value.spread_over(width) if isinstance(value, Channels) and fits else None
        if ids is None:
            ids = self.fresh(width)
            if isinstance(value, Channels):
                self.pin(value.ids, f"{label}, which reads another axis")
            self.pin(ids, value.reason if isinstance(value, Fixed) else label)
        return ids


def _tensors(thing: Any) -> Iterator[Tensorial]:
    """The tensors in an argument, however nested."""
    if isinstance(thing, Channels | Fixed):
        yield thing
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from _tensors(part)
    elif isinstance(thing, dict):
        yield from _tensors(tuple(thing.values()))
    elif isinstance(thing, slice):
        yield from _tensors((thing.start, thing.stop, thing.step))
