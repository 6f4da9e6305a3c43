"""*canonical*: a permutation and a rescaling of channels undone against the original."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .asked import asked
from .channel_factors import Channels, all_pinned, channels_of
from .channel_order import ChannelOrder
from .channel_scales import ChannelScales
from .protocol import Held, NamedStep, Weights
from .states import checked_state, with_shared_names


@dataclass(frozen=True)
class Canonical(NamedStep):
    """Channels are put back where the original has them, then divided by the factors that bring the weights nearest to
    the original's. Works on networks that torch.fx can trace; attention heads' own bases are not looked for.

    `reweightings` is how often tensors that stay far from the original lose weight in the fit: for a rescaling that
    was made beside another move.
    """

    step_name: ClassVar[str] = "canonical"

    reweightings: int = 0

    def prepared(self, held: Held) -> UndoChannels:
        """Trace the original."""
        order, channels = held.once(ChannelOrder), held.once(channels_of)
        if channels.free == 0 and order.sets == 0:
            raise all_pinned(held, "scale")
        return UndoChannels(held, order, channels, self.reweightings)


@dataclass(frozen=True, eq=False)
class UndoChannels:
    """`Canonical` for one original."""

    held: Held
    order: ChannelOrder
    channels: Channels
    reweightings: int

    def __call__(self, unlearned: Weights) -> dict[str, Tensor]:
        """The unlearned weights in the original's order and scales."""
        given = asked(unlearned)
        ordered = given.once(("ordered", self.held), lambda: self.order.undone(checked_state(self.held, given)))
        if self.channels.free == 0:
            return with_shared_names(self.held, dict(ordered))
        scales = given.once(("scales", self.held), lambda: self._scales(ordered))
        return with_shared_names(self.held, scales.undone(reweightings=self.reweightings))

    def _scales(self, ordered: Weights) -> ChannelScales:
        return ChannelScales(self.channels, self.held.weights, ordered, self.held.parameters)
