"""The order of a network's channels, found again: those of a permuted network matched with those of the original.

Channels are matched by the directions of the slices they fill in weights of a form that no rescaling changes (see
`balanced`), set after set from the input on, as an assignment of the largest sum of cosines. A slice says something
once the channels along the tensor's other axes are in place, so the first layer is matched by its inputs, the next by
the first, and so on; later rounds use all slices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from ...symmetry.channel_graph import ChannelGraph
from ...symmetry.channels import Use
from .balanced import balanced
from .channel_factors import traced
from .protocol import Held, Weights

_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class _Slice:
    """Where the channels of a set stand along one axis of some rows of a tensor: places (channels, times); and the
    channels along the tensor's other axes.
    """

    name: str
    rows: slice
    axis: int
    places: Tensor
    others: frozenset[int]

    def taken(self, weights: Weights) -> Tensor:
        """What each channel fills, (channels, entries)."""
        part = weights[self.name][self.rows].index_select(self.axis, self.places.flatten()).movedim(self.axis, 0)
        return part.reshape(len(self.places), -1)

    def reorder(self, weights: dict[str, Tensor], order: Tensor) -> None:
        """Put into the place of each channel what channel `order` of it filled."""
        moved = weights[self.name].clone()
        part = moved[self.rows]
        part.index_copy_(self.axis, self.places.flatten(), part.index_select(self.axis, self.places[order].flatten()))
        weights[self.name] = moved


class ChannelOrder:
    """The sets of exchangeable channels of one original."""

    def __init__(self, held: Held) -> None:
        graph = traced(held, "order")
        self._blocks = {use.name: use.blocks for use in graph.uses if use.axis == 1}
        self._original = self._balanced(held.weights, {use.name for use in graph.uses})
        sets = graph.exchangeable()
        self._sets = list(zip(sets, _slices(graph, sets, held), strict=True))

    @property
    def sets(self) -> int:
        """How many sets there are."""
        return len(self._sets)

    def undone(self, unlearned: Weights) -> dict[str, Tensor]:
        """The unlearned weights with channels where the original has them."""
        found = dict(unlearned)
        forms = self._balanced(unlearned, set(self._original))
        unsettled = {channel for members, _ in self._sets for channel in members}
        for _ in range(_ROUNDS):
            changed = False
            for members, slices in self._sets:
                telling = [s for s in slices if s.name in forms]
                order = self._matching([s for s in telling if not s.others & unsettled] or telling, forms)
                unsettled -= set(members)
                if order is None or torch.equal(order, torch.arange(len(order), device=order.device)):
                    continue
                changed = True
                for s in slices:
                    s.reorder(found, order)
                for s in telling:
                    s.reorder(forms, order)
            if not changed:
                break
        return found

    def _matching(self, slices: list[_Slice], forms: Weights) -> Tensor | None:
        """Which of the channels as found fills the place of each, by summed cosines of what they fill."""
        if not slices:
            return None
        likeness = torch.stack([_cosines(s.taken(self._original), s.taken(forms)) for s in slices]).sum(0)
        order = linear_sum_assignment(-likeness.cpu().numpy())[1]
        return torch.as_tensor(order, device=likeness.device)

    def _balanced(self, weights: Weights, names: set[str]) -> dict[str, Tensor]:
        return {n: balanced(weights[n], blocks=self._blocks.get(n, 1)) for n in sorted(names) if weights[n].dim() > 1}


def _cosines(one: Tensor, other: Tensor) -> Tensor:
    return normalize(one, dim=1, eps=1e-300) @ normalize(other, dim=1, eps=1e-300).mT


def _slices(graph: ChannelGraph, sets: list[list[int]], held: Held) -> list[list[_Slice]]:
    """Where the channels of each set stand."""
    owner = {channel: (which, i) for which, members in enumerate(sets) for i, channel in enumerate(members)}
    roots = {id(use): graph.roots[list(use.ids)].tolist() for use in graph.uses}
    found: list[list[_Slice]] = [[] for _ in sets]
    for use in graph.uses:
        places: dict[int, list[list[int]]] = {}
        for place, channel in enumerate(roots[id(use)]):
            if channel in owner:
                which, i = owner[channel]
                if which not in places:
                    places[which] = [[] for _ in sets[which]]
                places[which][i].append(place)
        beside = [u for u in graph.uses if u.name == use.name and u.axis != use.axis]
        others = frozenset(channel for u in beside for channel in roots[id(u)])
        rows = len(held.weights[use.name])
        for which, where in places.items():
            found[which].append(_slice(use, torch.tensor(where), rows, others, held.device))
    return found


def _slice(use: Use, places: Tensor, rows: int, others: frozenset[int], device: torch.device) -> _Slice:
    if use.blocks == 1:
        return _Slice(use.name, slice(None), use.axis, places.to(device), others)
    # Channels that may change places all belong to one block.
    width, height = len(use.ids) // use.blocks, rows // use.blocks
    block = int(places[0, 0]) // width
    return _Slice(use.name, slice(block * height, (block + 1) * height), use.axis, (places % width).to(device), others)
