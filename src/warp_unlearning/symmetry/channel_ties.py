"""Channels that must be rescaled or reordered together, and those that must stay: a union-find with reasons.

Every channel of every tensor in a network is a number. Tying two makes them one class; pinning one pins its class.
"""

from __future__ import annotations

from collections.abc import Iterable


class ChannelTies:
    """Classes of tied channels; each class remembers what pinned it."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reasons: dict[int, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int) -> tuple[int, ...]:
        """New channels, each a class of its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return tuple(range(first, first + count))

    def root(self, channel: int) -> int:
        """The channel that stands for the class."""
        parent = self._parent
        while parent[channel] != channel:
            parent[channel] = parent[parent[channel]]
            channel = parent[channel]
        return channel

    def tie(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Make the channels of both sides, in turn, one class each."""
        for a, b in zip(left, right, strict=True):
            low, high = sorted((self.root(a), self.root(b)))
            if low == high:
                continue
            self._parent[high] = low
            reasons = (*self._reasons.get(low, ()), *self._reasons.pop(high, ()))
            if reasons:
                self._reasons[low] = tuple(dict.fromkeys(reasons))

    def pin(self, channels: Iterable[int], reason: str) -> None:
        """Keep the classes of these channels as they are, because of `reason`."""
        for channel in channels:
            root = self.root(channel)
            reasons = self._reasons.get(root, ())
            if reason not in reasons:
                self._reasons[root] = (*reasons, reason)

    def reasons(self, channel: int) -> tuple[str, ...]:
        """What pinned the channel; empty where it is free."""
        return self._reasons.get(self.root(channel), ())
