"""Permutation of hidden channels: the channels of a layer in another order, wherever they are made or read.

For a permutation P of hidden channels, W₁′ = P W₁, b₁′ = P b₁ and W₂′ = W₂ Pᵀ keep W₂ f(W₁ x + b₁) for every f that
acts on each channel alike; norms, running statistics and tied channels follow. Exact up to the order of summation, in
train and eval mode; the weights themselves are not rounded, whatever their precision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .channel_graph import ChannelGraph, ChannelReport
from .move import AxisMap, BlockMap, ChannelMove
from .symmetry import Probe, Sizes


class Permutation:
    """A uniformly random order within every set of exchangeable channels of any traceable network.

    Channels are exchangeable if they stand in the same tensors: those of one layer, say, but of the two parts of a
    concatenation only each with its own. A network without such channels gets the identity, and `report` says why.
    """

    @property
    def looks_at(self) -> Sizes:
        """Nothing: the network is enough."""
        return Sizes()

    def report(self, model: nn.Module, *, probe: Probe | None = None) -> ChannelReport:
        """How many channels of `model` may change places, and which operations pin the others."""
        return ChannelGraph(model, kind="order").report()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ChannelMove:
        """A random reordering of `model`, which is left as it is."""
        graph = ChannelGraph(model, kind="order")
        taken_from = torch.arange(len(graph.roots))
        for members in graph.exchangeable():
            order = torch.randperm(len(members), generator=generator, device=generator.device).cpu()
            channels = torch.tensor(members)
            taken_from[channels] = channels[order]
        axes: dict[str, tuple[AxisMap | BlockMap, ...]] = {}
        for use in graph.uses:
            parts = graph.roots[list(use.ids)].chunk(use.blocks)
            orders = [_order(part, taken_from) for part in parts]
            if all(torch.equal(order, torch.arange(len(order))) for order in orders):
                continue
            maps = tuple(AxisMap(use.axis, order) for order in orders)
            axes[use.name] = (*axes.get(use.name, ()), maps[0] if use.blocks == 1 else BlockMap(maps))
        return ChannelMove(axes)


def _order(channels: Tensor, taken_from: Tensor) -> Tensor:
    """Where each entry along an axis comes from: the same occurrence of the channel that takes its place."""
    places: dict[int, list[int]] = {}
    for place, channel in enumerate(channels.tolist()):
        places.setdefault(channel, []).append(place)
    order = torch.empty(len(channels), dtype=torch.long)
    for channel, here in places.items():
        order[here] = torch.tensor(places[int(taken_from[channel])])
    return order
