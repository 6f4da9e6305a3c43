"""Weights in which every channel has a factor, and derivatives of their sums in the logarithms of the factors.

A weight v that stands in the channels c with powers p_c = ±1 is rescaled to v exp(Σ_c p_c x_c), x being the logarithms.
Of Φ(x) = Σ_v v exp(Σ_c p_c x_c), over all weights of a network, the derivatives are Σ_v p_c v exp(…) and
Σ_v p_c p_d v exp(…). Running variances appear as deviations √(v + ε), which have power 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor, nn

from warp_unlearning.symmetry.channel_graph import ChannelGraph

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Place:
    """An axis of a tensor, the class of tied channels at each place along it, and the power ±1 they have there."""

    axis: int
    classes: Tensor
    sign: int


@dataclass(frozen=True, eq=False)
class Channels:
    """Where channels stand, by tensor name; how many classes of tied channels there are, and which are free; the ε of
    running variances, by name.
    """

    places: Mapping[str, tuple[Place, ...]]
    count: int
    free: Tensor
    offsets: Mapping[str, float]

    def embedded(self, values: Tensor) -> Tensor:
        """One number for each free class as one for each class, the others 0."""
        whole = torch.zeros(self.count, dtype=values.dtype)
        whole[self.free] = values
        return whole


def channels_of(model: nn.Module) -> Channels:
    """The channels of `model` that may be rescaled; no grouped convolutions."""
    graph = ChannelGraph(model, kind="scale")
    places: dict[str, tuple[Place, ...]] = {}
    for use in graph.uses:
        assert use.blocks == 1
        place = Place(use.axis, graph.roots[list(use.ids)], 1 if use.power > 0 else -1)
        places[use.name] = (*places.get(use.name, ()), place)
    offsets = {use.name: use.offset for use in graph.uses if use.offset}
    return Channels(places, len(graph.roots), torch.tensor(graph.free_channels(), dtype=torch.long), offsets)


def with_deviations(channels: Channels, state: Weights) -> dict[str, Tensor]:
    """Every tensor that channels stand in, running variances as deviations."""
    found = {name: state[name] for name in channels.places}
    return found | {name: (state[name] + offset).sqrt() for name, offset in channels.offsets.items()}


def with_variances(channels: Channels, values: Weights) -> dict[str, Tensor]:
    """The way back."""
    return {**values, **{name: values[name].square() - offset for name, offset in channels.offsets.items()}}


def rescaled(channels: Channels, values: Weights, logs: Tensor) -> dict[str, Tensor]:
    """Each tensor times the factors exp(± logs) of the channels it stands in."""
    found = dict(values)
    for name in values:
        for place in channels.places.get(name, ()):
            factors = (place.sign * logs[place.classes]).exp()
            found[name] = (found[name].movedim(place.axis, -1) * factors).movedim(-1, place.axis)
    return found


def first_derivatives(channels: Channels, values: Weights) -> Tensor:
    """∂Φ/∂x_c for every class c, given the rescaled weights."""
    found = torch.zeros(channels.count, dtype=torch.float64)
    for name, value in values.items():
        for place in channels.places.get(name, ()):
            found.index_add_(0, place.classes, place.sign * _sum_to(value, (place.axis,)))
    return found


def channel_sums(channels: Channels, values: Weights) -> Tensor:
    """Σ v over the weights that stand in each class."""
    found = torch.zeros(channels.count, dtype=torch.float64)
    for name, value in values.items():
        for place in channels.places.get(name, ()):
            found.index_add_(0, place.classes, _sum_to(value, (place.axis,)))
    return found


def second_derivatives(channels: Channels, values: Weights) -> Tensor:
    """∂²Φ/∂x_c∂x_d for all classes, given the rescaled weights."""
    found = channel_sums(channels, values).diag()
    for name, value in values.items():
        for one, other in permutations(channels.places.get(name, ()), 2):
            sums = one.sign * other.sign * _sum_to(value, (one.axis, other.axis))
            found.index_put_((one.classes[:, None], other.classes), sums, accumulate=True)
    return found


def _sum_to(value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over all axes but those, which come in the order given."""
    first = value.movedim(axes, tuple(range(len(axes))))
    return first if first.dim() == len(axes) else first.flatten(len(axes)).sum(-1)
