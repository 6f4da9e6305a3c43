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
from torch import Tensor

from ...errors import InputError
from ...symmetry.channel_graph import ChannelGraph
from ...symmetry.channel_walk import Kind, Use
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
            found[name] = found[name] * _along(factors, place.axes, found[name].dim())
    return found


def first_derivatives(channels: Channels, values: Weights) -> Tensor:
    """∂Φ/∂x_c for every free class c, given the rescaled weights."""
    return _sums(channels, values, signed=True)


def channel_sums(channels: Channels, values: Weights) -> Tensor:
    """Σ v over the weights that stand in each free class."""
    return _sums(channels, values, signed=False)


def second_derivatives(channels: Channels, values: Weights) -> Tensor:
    """∂²Φ/∂x_c∂x_d for all free classes, given the rescaled weights."""
    n = channels.free
    found = _sums(channels, values, signed=False, padded=True).diag()
    for name, value in values.items():
        for one, other in permutations(channels.places.get(name, ()), 2):
            axes = tuple(sorted({*one.axes, *other.axes}))
            sums = one.sign * other.sign * _sum_to(value, axes)
            where = _among(one, axes) * (n + 1) + _among(other, axes)
            found.view(-1).index_add_(0, where.flatten(), sums.flatten())
    return found[:n, :n]


def _sums(channels: Channels, values: Weights, *, signed: bool, padded: bool = False) -> Tensor:
    device = next(iter(values.values())).device
    found = torch.zeros(channels.free + 1, dtype=torch.float64, device=device)
    for name, value in values.items():
        for place in channels.places.get(name, ()):
            sums = _sum_to(value, place.axes).flatten()
            found.index_add_(0, place.classes.flatten(), place.sign * sums if signed else sums)
    return found if padded else found[:-1]


def _place(use: Use, classes: Tensor, value: Tensor, device: torch.device) -> Place:
    sign, classes = 1 if use.power > 0 else -1, classes.to(device)
    if use.blocks == 1:
        return Place((use.axis,), classes, sign)
    rows = classes.reshape(use.blocks, -1).repeat_interleave(len(value) // use.blocks, 0)
    return Place((0, use.axis), rows, sign)


def _along(factors: Tensor, axes: tuple[int, ...], dims: int) -> Tensor:
    """Factors with the shape of `axes` as a tensor that is 1 long along all others."""
    shape = [1] * dims
    for axis, size in zip(axes, factors.shape, strict=True):
        shape[axis] = size
    return factors.reshape(shape)


def _among(place: Place, axes: tuple[int, ...]) -> Tensor:
    """Classes of a place with the other `axes` beside its own."""
    own = tuple(axes.index(axis) for axis in place.axes)
    return _along(place.classes, own, len(axes))


def _sum_to(value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over all axes but those, which are in order."""
    rest = [axis for axis in range(value.dim()) if axis not in axes]
    return value.sum(rest) if rest else value


def all_pinned(held: Held, kind: Kind) -> NotApplicable:
    """The error that no channel may be moved, and what keeps them in place."""
    reasons = dict.fromkeys(reason for tensor in traced(held, kind).report().pinned for reason in tensor.reasons)
    pins = f": pinned by {', '.join(list(reasons)[:3])}" if reasons else ""
    return NotApplicable(
        f"no channel of {type(held.original).__name__} may be {'rescaled' if kind == 'scale' else 'reordered'}{pins}"
    )
