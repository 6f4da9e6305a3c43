"""Layers that start to be followed, with exact decompositions of all of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ..linalg.tracked import TrackedSubspace, start_all
from .input_bases import InputBasis, ObservedRows
from .kept_columns import KeptColumns
from .linear_weights import LinearWeight
from .tracked_layer import TrackedLayer


class Beginning(NamedTuple):
    """What a layer starts with, from so many inputs that reach so many of its coordinates."""

    weight: LinearWeight
    layer: TrackedLayer
    positions: int
    reached: int

    def basis(self) -> InputBasis:
        """The basis that the layer starts with, once it has its subspaces."""
        return self.layer.basis(self.weight, self.layer.spans, self.positions, self.reached)


def beginning(observed: ObservedRows, alive: Tensor, tracker: Callable[[], TrackedSubspace]) -> Beginning:
    """A layer with a `tracker` of its own for each group, and with subspaces where inputs are so few that they have
    them for little; `alive`, bool (groups, d) on the host, are the coordinates that inputs reach.
    """
    weight = observed.weight
    device = weight.tensor.device
    columns = KeptColumns.of(alive, weight, device)
    if columns is None:
        rows = observed.whole().rows
    else:
        kept = columns.kept.cpu()
        rows, alive = observed.within(kept), alive.index_select(1, kept)
    trackers = [tracker() for _ in range(rows.groups)]
    layer = TrackedLayer(rows.second_moment() / rows.positions, trackers, columns=columns)
    if rows.positions <= rows.d:
        exact = rows.subspaces(trackers[0].fraction, rule=trackers[0].rule)
        layer.spans = [t.adopt(s, a) for t, s, a in zip(trackers, exact, alive.to(device), strict=True)]
    return Beginning(weight, layer, rows.positions, int(alive.sum()))


def decompose(beginnings: Sequence[Beginning]) -> None:
    """Find the subspaces of layers that have none yet, all side by side."""
    waiting = [b.layer for b in beginnings if not b.layer.spans]
    pairs = [pair for layer in waiting for pair in zip(layer.trackers, layer.within, strict=True)]
    spans = iter(start_all([tracker for tracker, _ in pairs], [moment for _, moment in pairs]))
    for layer in waiting:
        layer.spans = [next(spans) for _ in layer.trackers]
    for each in beginnings:
        each.layer.awaken()
