"""Weights in which every channel has a factor.

A weight v that stands in the channels c with powers p_c = ±1 is rescaled to v exp(Σ_c p_c x_c), x being the logarithms.
Running variances appear as deviations √(v + ε), which have power 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import InputError
from ...symmetry.channel_graph import ChannelGraph
from ...symmetry.channels import Kind, Use
from .pair_sums import along, pair_sums
from .protocol import Held, NotApplicable, Weights


@dataclass(frozen=True, eq=False)
class Place:
    """Some axes of a tensor, the class of tied channels at each place along them, and the power ±1 they have there.

    One axis, but for the kernel of a grouped convolution: which channel an entry of axis 1 reads depends on its row.
    """

    axes: tuple[int, ...]
    classes: Tensor
    sign: int


@dataclass(frozen=True, eq=False)
class Channels:
    """Where channels stand, by tensor name, and the ε of running variances, by name.

    Classes of tied channels that may be rescaled are numbered from 0 to `free` − 1; all others are the class `free`.
    """

    places: Mapping[str, tuple[Place, ...]]
    free: int
    offsets: Mapping[str, float]
    _found: dict[Hashable, Tensor] = field(default_factory=dict, init=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` finds out about these channels; it is asked the first time alone."""
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]

    def embedded(self, values: Tensor) -> Tensor:
        """One number for each free class as one for each class, 0 for the channels that stay."""
        return torch.cat([values, values.new_zeros(1)])


def channels_of(held: Held) -> Channels:
    """The channels of the original that may be rescaled, which may be none."""
    graph = traced(held, "scale")
    roots = torch.tensor(graph.free_channels(), dtype=torch.long)
    number = torch.full((len(graph.roots),), len(roots), dtype=torch.long)
    number[roots] = torch.arange(len(roots))
    places: dict[str, tuple[Place, ...]] = {}
    for use in graph.uses:
        place = _place(use, number[graph.roots[list(use.ids)]], held.weights[use.name], held.device)
        places[use.name] = (*places.get(use.name, ()), place)
    return Channels(places, len(roots), {use.name: use.offset for use in graph.uses if use.power == 2})


def traced(held: Held, kind: Kind) -> ChannelGraph:
    """The traced channels of the original, or the reason why there are none."""
    try:
        return ChannelGraph(held.model, kind=kind)
    except InputError as error:
        raise NotApplicable(str(error)) from error


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
            found[name] = found[name] * along(factors, place.axes, found[name].dim())
    return found


def first_derivatives(channels: Channels, values: Weights) -> Tensor:
    """∂Φ/∂x_c for every free class c, Φ being the sum of the rescaled weights, given those."""
    return pair_sums(channels, values).first()


def channel_sums(channels: Channels, values: Weights) -> Tensor:
    """Σ v over the weights that stand in each free class."""
    return pair_sums(channels, values).totals()


def second_derivatives(channels: Channels, values: Weights) -> Tensor:
    """∂²Φ/∂x_c∂x_d for all free classes, given the rescaled weights."""
    return pair_sums(channels, values).second()


def _place(use: Use, classes: Tensor, value: Tensor, device: torch.device) -> Place:
    sign, classes = 1 if use.power > 0 else -1, classes.to(device)
    if use.blocks == 1:
        return Place((use.axis,), classes, sign)
    rows = classes.reshape(use.blocks, -1).repeat_interleave(len(value) // use.blocks, 0)
    return Place((0, use.axis), rows, sign)


def all_pinned(held: Held, kind: Kind) -> NotApplicable:
    """The error that no channel may be moved, and what keeps them in place."""
    reasons = dict.fromkeys(reason for tensor in traced(held, kind).report().pinned for reason in tensor.reasons)
    pins = f": pinned by {', '.join(list(reasons)[:3])}" if reasons else ""
    return NotApplicable(
        f"no channel of {type(held.original).__name__} may be {'rescaled' if kind == 'scale' else 'reordered'}{pins}"
    )
