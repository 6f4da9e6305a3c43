"""The state of a walk over a traced network: ties, pins, and where each channel stands in the weights.

Walks are of two kinds. For `scale`, channels are tied that must be multiplied by the same factor τ > 0, and pinned by
whatever is not homogeneous. For `order`, channels are tied that must stand in the same order, and pinned by whatever
knows one position from another. Batch norm, say, ties the order of what enters to the order of what leaves, not the
scales; GELU pins scales alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .channel_ties import ChannelTies
from .channel_values import Call, Channels, Fixed, Tensorial

Kind = Literal["scale", "order"]


@dataclass(frozen=True)
class Use:
    """Channels along one axis of a state tensor; entry i is multiplied by τ(ids[i]) to the `power`.

    With `blocks` above 1 the ids run through the blocks of a grouped convolution, each with its own part of axis 1.
    """

    name: str
    axis: int
    ids: tuple[int, ...]
    power: int = 1
    offset: float = 0.0
    blocks: int = 1


@dataclass
class Walk:
    """What is known so far; rules add to it."""

    kind: Kind
    through_norm: bool = True
    ties: ChannelTies = field(default_factory=ChannelTies)
    uses: list[Use] = field(default_factory=list)
    splits: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    layers: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def pin(self, value: Tensorial, reason: str) -> None:
        """Pin all channels of a value."""
        if isinstance(value, Channels):
            self.ties.pin(value.ids, reason)

    def unknown(self, call: Call) -> Fixed:
        """Pin all that an operation without a rule touches; what it returns stays too."""
        tensors = call.tensors()
        for value in tensors:
            self.pin(value, call.label)
        stays = next((value.reason for value in tensors if isinstance(value, Fixed)), None)
        return Fixed(call.label if stays is None or len(tensors) > 1 else stays)

    def is_pinned(self, value: Channels) -> bool:
        """Whether no channel of a value may change."""
        return all(self.ties.reasons(channel) for channel in value.ids)

    def pinned_channels(self, count: int, reason: str) -> tuple[int, ...]:
        """New channels that stay."""
        ids = self.ties.fresh(count)
        self.ties.pin(ids, reason)
        return ids

    def entering(self, value: Tensorial, width: int, *, fits: bool, label: str) -> tuple[int, ...]:
        """The channel of each of the `width` entries that a layer reads."""
        if isinstance(value, Fixed):
            return self.pinned_channels(width, value.reason)
        ids = value.spread_over(width) if fits else None
        if ids is None:
            self.pin(value, f"{label}, which reads another axis")
            return self.pinned_channels(width, label)
        return ids
