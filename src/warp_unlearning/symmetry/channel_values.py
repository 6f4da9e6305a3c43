"""What the walk over a traced network knows of each value: which of its entries belong to which channel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Layout = Literal["plain", "each", "whole"]


@dataclass(frozen=True, eq=False)
class Channels:
    """A tensor with the channels `ids` along `axis`, counted from the end; `rank` axes in all where that is known.

    A flattened tensor holds several positions of every channel along its last axis: `each` as (channel, position),
    `whole` as (position, channel). How many is seen where a layer of known width reads it.
    """

    ids: tuple[int, ...]
    axis: int
    rank: int | None
    layout: Layout = "plain"

    def spread_over(self, width: int) -> tuple[int, ...] | None:
        """The channel of each of `width` entries along the axis; nothing where they do not fit."""
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
    """No tensor: a size, a shape, or arithmetic on them. `batch_of` is the tensor whose first size it is."""

    shape_of: Channels | Fixed | None = None
    batch_of: Channels | Fixed | None = None


Tensorial = Channels | Fixed
Value = Channels | Fixed | Number | tuple[Channels, ...]


@dataclass(frozen=True)
class Call:
    """One operation of the traced network, with values in the place of its tensors."""

    label: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    path: str = ""
    module: nn.Module | None = None

    def tensors(self) -> list[Tensorial]:
        """Every tensor among the arguments, however deep."""
        return list(_tensors((self.args, self.named)))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[position] if len(self.args) > position else self.named.get(name, default)


def _tensors(thing: Any) -> Iterator[Tensorial]:
    if isinstance(thing, Channels | Fixed):
        yield thing
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from _tensors(part)
    elif isinstance(thing, dict):
        for part in thing.values():
            yield from _tensors(part)
    elif isinstance(thing, slice):
        yield from _tensors((thing.start, thing.stop, thing.step))
