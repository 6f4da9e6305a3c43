"""How much a change of basis rescales coordinates of a network's gradient, from the traced graph of its channels.

Under θ′ = T θ with T diagonal, gradients follow T⁻ᵀ: that of a weight between channels of factors τ_in and τ_out is
rescaled by r = τ_in/τ_out. So log r is a sum of a few log τ, one row of whole numbers for each coordinate.
With s the spread of the factors, E[τ²] = 1 + s²/3 and E[τ⁻²] = 1/(1 − s²) for the uniform law; the lognormal law
keeps E[τ²] = 1 for weights that lead out of a free channel, and has E[τ⁻²] = exp(4s²). No law keeps E[r²] = 1
everywhere, however the factors depend on each other: along a path from input to output the ratios multiply to 1, so
their E[log r²] add up to 0, while E[r²] = 1 makes each of them negative (Jensen) unless r is constant.

"conjugated" is the step of `Conjugate` as it is seen from the original's coordinates, T⁻¹T⁻ᵀ g, whose factors are the
squares, up to the one length that every step is brought to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.integrate import quad
from scipy.sparse import csr_array
from scipy.special import ndtr
from torch import Tensor, nn

from ..data.examples import TensorExamples
from ..errors import DataError, InputError, nearest
from ..gpu.precision import math_attention
from ..gradients.per_sample import each_gradient
from ..symmetry.channel_graph import ChannelGraph
from ..symmetry.channels import Use
from ..symmetry.rescaling import LEAST_NORMAL, Law, check_law, draw_scales
from .information import Array

Seen = Literal["teleported", "conjugated"]

_ENTRIES_AT_ONCE = 1 << 26


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Positions in each flattened parameter, by name, in the order of the model; `available` were to choose from."""

    positions: dict[str, Tensor]
    shapes: dict[str, tuple[int, ...]]
    available: int

    def __len__(self) -> int:
        return sum(map(len, self.positions.values()))

    def label(self, index: int) -> str:
        """Coordinate `index` as a user writes it, such as fc.weight[3, 1]."""
        for name, places in self.positions.items():
            if index < len(places):
                place = torch.unravel_index(places[index], self.shapes[name])
                return f"{name}[{', '.join(str(int(i)) for i in place)}]"
            index -= len(places)
        raise IndexError(index)


def choose_coordinates(
    model: nn.Module, *, parameters: str | Sequence[str], count: int, generator: torch.Generator
) -> Coordinates:
    """`count` positions drawn without repetition, all where there are fewer.

    `parameters` is "all", "first" (the first weight and its bias), or names of trainable parameters.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise InputError("the model has no trainable parameter; there is no gradient to look at")
    chosen = {name: trained[name] for name in _names(trained, parameters)}
    available = sum(p.numel() for p in chosen.values())
    drawn = torch.randperm(available, generator=generator)[:count].sort().values
    positions, begin = {}, 0
    for name, p in chosen.items():
        inside = drawn[(drawn >= begin) & (drawn < begin + p.numel())] - begin
        if len(inside):
            positions[name] = inside
        begin += p.numel()
    return Coordinates(positions, {name: tuple(chosen[name].shape) for name in positions}, available)


def gradient_rows(model: nn.Module, examples: TensorExamples, coordinates: Coordinates, *, what: str) -> Array:
    """The gradients of single examples at the coordinates, (n, m) in float64: row i holds ∂ℓ(f(xᵢ), yᵢ)/∂θ of
    cross-entropy. The model is in eval mode.
    """
    size = max(1, min(64, _ENTRIES_AT_ONCE // max(p.numel() for p in model.parameters())))
    rows = []
    # Fused attention has no rule for gradients of single examples.
    with math_attention():
        for x, y in zip(torch.split(examples.x, size), torch.split(examples.y, size), strict=True):
            columns = [
                gradient.flatten(1)[:, coordinates.positions[name].to(gradient.device)].detach().double().cpu()
                for name, gradient in each_gradient(model, x, y)
                if name in coordinates.positions
            ]
            rows.append(torch.cat(columns, dim=1))
    matrix = torch.cat(rows).numpy()
    wrong = np.flatnonzero(~np.isfinite(matrix).all(1))
    if len(wrong):
        raise DataError(
            f"the gradient of row {wrong[0]} of the {what} set is not finite; the weights are damaged or the loss "
            "overflows: use finite weights, or remove the row"
        )
    return np.asarray(matrix, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class GraphRatios:
    """log r = powers · log τ, powers (m, channels), over the free channels that rescale the coordinates.

    A factor below `least`, shape (channels,), would make a running variance negative, and is 1 instead.
    """

    powers: csr_array
    least: Array

    @property
    def channels(self) -> int:
        """Free channels that rescale the coordinates; 0 where nothing does."""
        return len(self.least)

    def log_squares(self, law: Law, spread: float, *, draws: int, generator: torch.Generator) -> Array:
        """Independent draws of log r², shape (draws, m)."""
        scales = draw_scales(law, draws * self.channels, spread=spread, generator=generator).numpy()
        scales = scales.reshape(draws, self.channels)
        logs = np.log(np.where(scales > self.least, scales, 1.0))
        return np.asarray(2 * (self.powers @ logs.T).T)

    def log_energies(self, law: Law, spread: float) -> Array:
        """The log E[r²] of each coordinate, exact for the law, shape (m,)."""
        powers = self.powers.tocoo()
        keys = np.stack([2 * powers.data, self.least[powers.coords[1]]], axis=1)
        kinds, which = np.unique(keys, axis=0, return_inverse=True)
        moments = np.array([scale_moment(law, spread, power=float(p), least=float(low)) for p, low in kinds])
        logs = np.zeros(self.powers.shape[0])
        np.add.at(logs, powers.coords[0], np.log(moments)[which.reshape(-1)])
        return logs

    def log_moments(self, spread: float) -> tuple[Array, Array] | None:
        """Mean and standard deviation of log r², (m,) each, under the law "lognormal", log τ ~ N(−s², s²).

        None where more than one factor in a billion falls below `least`: log r² is normal only without those.
        """
        highest = self.least.max(initial=0.0)
        if highest > 0 and ndtr((np.log(highest) + spread**2) / spread) >= 1e-9:
            return None
        total, square = self.powers.sum(axis=1), (self.powers**2).sum(axis=1)
        return -2 * spread**2 * np.asarray(total), 2 * spread * np.sqrt(np.asarray(square))


def graph_ratios(model: nn.Module, coordinates: Coordinates, *, through_norm: bool, seen: Seen) -> GraphRatios:
    """The ratios of the coordinates under `ChangeOfBasis(through_norm=...)` of `model`."""
    if seen not in ("teleported", "conjugated"):
        raise InputError(f"seen is {seen!r}; give 'teleported' or 'conjugated'")
    graph = ChannelGraph(model, kind="scale", through_norm=through_norm)
    free = np.zeros(len(graph.roots), dtype=bool)
    free[graph.free_channels()] = True
    sign = 2.0 if seen == "conjugated" else 1.0
    entries, begin = [np.empty((3, 0))], 0
    for name, positions in coordinates.positions.items():
        for use in (use for use in graph.uses if use.name == name):
            roots = graph.channels(use)[_entry(use, positions, coordinates.shapes[name])].numpy()
            moved = np.flatnonzero(free[roots])
            entries.append(np.stack([begin + moved, roots[moved], np.full(len(moved), -sign * use.power)]))
        begin += len(positions)
    rows, columns, powers = np.concatenate(entries, axis=1)
    places = rows.astype(np.int64), columns.astype(np.int64)
    matrix = csr_array((powers, places), shape=(len(coordinates), len(free)))
    # A weight between two channels that are tied keeps its size: its powers cancel.
    matrix.eliminate_zeros()
    touched = np.unique(matrix.tocoo().coords[1])
    return GraphRatios(csr_array(matrix[:, touched]), _least(graph, model)[touched])


def _names(trained: dict[str, nn.Parameter], wanted: str | Sequence[str]) -> list[str]:
    if wanted == "all":
        return list(trained)
    if wanted == "first":
        first = next((name for name, p in trained.items() if p.dim() > 1), next(iter(trained)))
        owner = first.rpartition(".")[0]
        return [name for name in trained if name.rpartition(".")[0] == owner]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise InputError("parameters is empty; give 'all', 'first' or names of trainable parameters")
    for name in names:
        if name not in trained:
            known = nearest(str(name), [*trained, "all", "first"])
            raise InputError(f"the model has no trainable parameter {name!r}; {known}")
    return [name for name in trained if name in names]


def _entry(use: Use, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Where each position stands along the axis of a use."""
    place = torch.unravel_index(positions, shape)
    if use.blocks == 1:
        return place[use.axis]
    block = place[0] // (shape[0] // use.blocks)
    return block * (len(use.ids) // use.blocks) + place[use.axis]


def _least(graph: ChannelGraph, model: nn.Module) -> Array:
    """The factor at which τ²(v + ε) = ε for a channel with running variance v; 0 where there is none."""
    least, state = np.zeros(len(graph.roots)), model.state_dict()
    for use in graph.uses:
        if use.offset:
            shifted = state[use.name].detach().double().cpu().numpy() + use.offset
            np.maximum.at(least, graph.channels(use).numpy(), np.sqrt(use.offset / shifted))
    return least


def scale_moment(law: Law, spread: float, *, power: float, least: float = 0.0) -> float:
    """E[τ^power], where a factor below `least` is 1 instead, as that of a channel with little running variance.

    >>> round(scale_moment("lognormal", 0.5, power=2), 12), round(scale_moment("lognormal", 0.5, power=-2), 6)
    (1.0, 2.718282)
    """
    check_law(law, spread)
    if law == "lognormal":
        held, low = 0.0, -np.inf
        if least > 0:
            low = (np.log(least) + spread**2) / spread
            held = float(ndtr(low))
        return float(np.exp(-power * spread**2 + 0.5 * (power * spread) ** 2) * ndtr(power * spread - low)) + held
    if law == "uniform":
        low, high = min(max(1 - spread, least), 1 + spread), 1 + spread
        return (_power_integral(power, low, high) + low - (1 - spread)) / (2 * spread)
    begin = (LEAST_NORMAL - 1) / spread
    low = max((least - 1) / spread, begin)
    # A Gaussian has no mass in float64 twelve standard deviations away.
    inner, outer = max(low, -12.0), max(low, 0.0) + 12.0
    found = quad(lambda z: (1 + spread * z) ** power * np.exp(-0.5 * z**2), inner, outer, epsabs=0, epsrel=1e-11)[0]
    return float(found / np.sqrt(2 * np.pi) + ndtr(low) - ndtr(begin)) / float(ndtr(-begin))


def _power_integral(power: float, low: float, high: float) -> float:
    """∫ t^power dt from low to high."""
    if power == -1:
        return float(np.log(high / low))
    return float((high ** (power + 1) - low ** (power + 1)) / (power + 1))
