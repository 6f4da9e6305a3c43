"""Hidden channels reordered wherever they are made or read.

For a permutation P, W₁′ = P W₁, b₁′ = P b₁ and W₂′ = W₂ Pᵀ keep W₂ f(W₁ x + b₁) for every f that acts on each channel
alike. Exact up to the order of summation, in train and eval mode and in any precision.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Probe, Sizes
from .channel_graph import ChannelGraph, ChannelReport
from .moves import AxisMap, ChannelMove, TensorMap, in_blocks


class Permutation:
    """A uniformly random order within every set of exchangeable channels of any traceable network.

    Channels are exchangeable if they stand in the same tensors: those of one layer, say, but of the two parts of a
    concatenation only each with its own. A network without such channels gets the identity, and `report` says why.
    """

    looks_at: ClassVar[Sizes] = Sizes()

    def report(self, model: nn.Module, *, probe: Probe | None = None) -> ChannelReport:
        """How many channels of `model` may change places, and which operations pin the others."""
        return ChannelGraph(model, kind="order").report()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ChannelMove:
        """Draw an order within each set of exchangeable channels, and apply it at every use of them in the weights."""
        graph = ChannelGraph(model, kind="order")
        sources = torch.arange(len(graph.roots))  # The channel that takes the place of each.
        for members in graph.exchangeable():
            order = torch.randperm(len(members), generator=generator, device=generator.device).cpu()
            channels = torch.tensor(members)
            sources[channels] = channels[order]
        axes: dict[str, tuple[TensorMap, ...]] = {}
        for use in graph.uses:
            orders = [_entry_order(part, sources) for part in graph.channels(use).chunk(use.blocks)]
            if any(not torch.equal(order, torch.arange(len(order))) for order in orders):
                joined = in_blocks([AxisMap(use.axis, order) for order in orders])
                axes[use.name] = (*axes.get(use.name, ()), joined)
        return ChannelMove(axes)


def _entry_order(channels: Tensor, sources: Tensor) -> Tensor:
    """The order of entries along an axis where channel c is replaced by `sources[c]`, its n-th entry by that one's."""
    entries: dict[int, list[int]] = {}
    for entry, channel in enumerate(channels.tolist()):
        entries.setdefault(channel, []).append(entry)
    order = torch.empty(len(channels), dtype=torch.long)
    for channel, own_entries in entries.items():
        order[own_entries] = torch.tensor(entries[int(sources[channel])])
    return order
