"""By how much a change of basis rescales coordinates of a network's gradient, from the traced graph of its channels.

Under θ′ = T θ with T diagonal, gradients follow T⁻ᵀ: that of a weight between channels of factors τ_in and τ_out is
rescaled by r = τ_in/τ_out. So log r is a sum of a few log τ, one row of whole numbers for each coordinate.
"conjugated" is the step of `Conjugate` as it is seen from the original's coordinates, T⁻¹T⁻ᵀ g, whose factors are the
squares, up to the one length that every step is brought to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import ndtr
from torch import Tensor, nn

from ..errors import InputError
from ..symmetry.channel_graph import ChannelGraph
from ..symmetry.channels import Use
from ..symmetry.rescaling import Law, draw_scales
from .coordinates import Coordinates
from .covariance import Array
from .scale_energy import scale_moment

Seen = Literal["teleported", "conjugated"]


@dataclass(frozen=True, eq=False)
class GraphRatios:
    """log r = powers · log τ, powers (m, channels), over the free channels that the coordinates meet.

    A factor below `least`, shape (channels,), would make a running variance negative, and is 1 instead.
    """

    powers: csr_array
    least: Array

    @property
    def channels(self) -> int:
        """Free channels that the coordinates meet; 0 where nothing rescales them."""
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

    def never_held(self, spread: float) -> bool:
        """Whether under the law "lognormal" hardly a draw in a billion meets a factor that is held at 1."""
        low = self.least[self.least > 0]
        return not len(low) or float(ndtr((np.log(low.max()) + spread**2) / spread)) < 1e-9

    def log_moments(self, spread: float) -> tuple[Array, Array]:
        """Mean and standard deviation of log r², (m,) each, which is normal under the law "lognormal" where no factor
        is held at 1: log τ ~ N(−s², s²).
        """
        total = np.asarray(self.powers.sum(axis=1)).reshape(-1)
        square = np.asarray((self.powers**2).sum(axis=1)).reshape(-1)
        return -2 * spread**2 * total, 2 * spread * np.sqrt(square)


def graph_ratios(model: nn.Module, coordinates: Coordinates, *, through_norm: bool, seen: Seen) -> GraphRatios:
    """The ratios of the coordinates under `ChangeOfBasis(through_norm=...)` of `model`."""
    if seen not in ("teleported", "conjugated"):
        raise InputError(f"seen is {seen!r}; give 'teleported' or 'conjugated'")
    graph = ChannelGraph(model, kind="scale", through_norm=through_norm)
    free = np.zeros(len(graph.roots), dtype=bool)
    free[graph.free_channels()] = True
    rows: list[NDArray[np.int64]] = []
    columns: list[NDArray[np.int64]] = []
    powers: list[Array] = []
    begin = 0
    for name, positions in coordinates.positions.items():
        for use in graph.uses:
            if use.name == name:
                roots = graph.roots[_channels(use, positions, coordinates.shapes[name])].numpy()
                moved = free[roots]
                rows.append(begin + np.flatnonzero(moved))
                columns.append(roots[moved])
                powers.append(np.full(int(moved.sum()), -float(use.power)))
        begin += len(positions)
    matrix = csr_array(
        (np.concatenate([*powers, []]), (_joined(rows), _joined(columns))), shape=(len(coordinates), len(free))
    )
    # A weight between two channels that are tied keeps its size: its powers cancel.
    matrix.eliminate_zeros()
    touched = np.unique(matrix.tocoo().coords[1])
    factor = 2.0 if seen == "conjugated" else 1.0
    return GraphRatios(csr_array(factor * matrix[:, touched]), _least(graph, model)[touched])


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*parts, np.empty(0, dtype=np.int64)])


def _channels(use: Use, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The channel that each position meets along the axis of one use."""
    place = torch.unravel_index(positions, shape)
    index = place[use.axis]
    if use.blocks > 1:
        block = place[0] // (shape[0] // use.blocks)
        index = block * (len(use.ids) // use.blocks) + index
    return torch.tensor(use.ids, dtype=torch.long)[index]


def _least(graph: ChannelGraph, model: nn.Module) -> Array:
    """The factor at which τ²(v + ε) = ε for a channel with running variance v; 0 where there is none."""
    least = np.zeros(len(graph.roots))
    state = model.state_dict()
    for use in graph.uses:
        if use.offset:
            shifted = state[use.name].detach().double().cpu().numpy() + use.offset
            np.maximum.at(least, graph.roots[list(use.ids)].numpy(), np.sqrt(use.offset / shifted))
    return least
