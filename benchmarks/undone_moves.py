"""The canonical attacker: permutations and rescalings of an unlearned network undone against the original.

Order: channels are matched by the directions of the slices they fill, which positive factors of the channel itself do
not change, set after set from the input on (`scipy.optimize.linear_sum_assignment`).

Factors: the point of the orbit of the unlearned network that lies nearest to the original, min_x Σ (T_x⁻¹θ_u − θ_org)²,
jointly over all tensors in which a channel stands. The loss does not change along an orbit, so that its gradient is
orthogonal to it: a gradient step off the original ends, to first order, where its orbit comes nearest. That is why a
move made after the update hides nothing from this attacker. Running statistics, which unlearning in eval mode leaves as
they are, tell the factors of what enters a batch norm outright; they have the weight `TRUST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from channel_factors import (
    Channels,
    Weights,
    first_derivatives,
    rescaled,
    second_derivatives,
    with_deviations,
    with_variances,
)
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from warp_unlearning.symmetry.channel_graph import ChannelGraph

TRUST = 1e6
ROUNDS = 3
STEPS = 20


@dataclass(frozen=True, eq=False)
class _Slice:
    """Where the channels of a set stand along one axis of a tensor, and the channels along its other axes."""

    name: str
    axis: int
    places: Tensor
    others: frozenset[int]


class ChannelOrder:
    """The sets of exchangeable channels of a network in which no channel stands twice along an axis."""

    def __init__(self, model: nn.Module) -> None:
        graph = ChannelGraph(model, kind="order")
        self._sets = [(members, list(_slices(graph, members))) for members in graph.exchangeable()]

    def undone(self, original: Weights, unlearned: Weights) -> dict[str, Tensor]:
        """The unlearned weights with channels where the original has them."""
        found = dict(unlearned)
        unsettled = {channel for members, _ in self._sets for channel in members}
        for _ in range(ROUNDS):
            for members, slices in self._sets:
                unsettled -= set(members)
                order = _matching([s for s in slices if not s.others & unsettled], original, found, len(members))
                for s in slices:
                    moved = found[s.name].index_select(s.axis, s.places[order])
                    found[s.name] = found[s.name].index_copy(s.axis, s.places, moved)
        return found


def _slices(graph: ChannelGraph, members: list[int]) -> Iterator[_Slice]:
    for use in graph.uses:
        hits = graph.roots[list(use.ids)] == torch.tensor(members)[:, None]
        if bool(hits.any()):
            beside = [u for u in graph.uses if u.name == use.name and u.axis != use.axis]
            others = frozenset(int(graph.roots[i]) for u in beside for i in u.ids)
            yield _Slice(use.name, use.axis, hits.int().argmax(1), others)


def _matching(slices: Iterable[_Slice], original: Weights, found: Weights, count: int) -> Tensor:
    """Which of the channels as found fills the place of each, by summed cosines of what they fill."""
    likeness = torch.zeros(count, count, dtype=torch.float64)
    for s in slices:
        if original[s.name].dim() > 1:
            both = (w[s.name].index_select(s.axis, s.places).movedim(s.axis, 0).flatten(1) for w in (original, found))
            one, other = (torch.nn.functional.normalize(rows, dim=1) for rows in both)
            likeness += one @ other.mT
    return torch.as_tensor(linear_sum_assignment(-likeness.numpy())[1])


def undo_scales(
    channels: Channels, original: Weights, unlearned: Weights, trained: set[str], *, reweightings: int = 0
) -> dict[str, Tensor]:
    """The nearest point of the orbit; `trained` names the parameters.

    Where something else moved some tensors far, as a null-space move does, the factors are better read off the others:
    each reweighting gives every parameter tensor the inverse of its mean squared difference as weight, and fits again.
    """
    target, moved = with_deviations(channels, original), with_deviations(channels, unlearned)
    trust = {name: 1.0 if name in trained else TRUST for name in target}
    logs = _nearest(channels, target, moved, trust, _fit_of_logarithms(channels, target, moved, trust))
    for _ in range(reweightings):
        now = rescaled(channels, moved, -logs)
        off = {name: float((now[name] - target[name]).square().mean()) for name in target if name in trained}
        most = max(off.values())
        trust = {name: most / (off[name] + 1e-6 * most) if name in trained else 1e6 * TRUST for name in target}
        logs = _nearest(channels, target, moved, trust, logs)
    return {**unlearned, **with_variances(channels, rescaled(channels, moved, -logs))}


def _nearest(channels: Channels, target: Weights, moved: Weights, trust: dict[str, float], logs: Tensor) -> Tensor:
    """The logarithms that minimise Σ trust · (rescaled − target)², by Gauss-Newton."""
    for _ in range(STEPS):
        now = rescaled(channels, moved, -logs)
        slope = first_derivatives(channels, {n: trust[n] * v * (v - target[n]) for n, v in now.items()})
        curvature = second_derivatives(channels, {n: trust[n] * v.square() for n, v in now.items()})
        step = _solved(channels, curvature, slope)
        logs = logs + step.clamp(-1, 1)
        if float(step.abs().max()) < 1e-6:
            break
    return logs


def _fit_of_logarithms(channels: Channels, target: Weights, moved: Weights, trust: dict[str, float]) -> Tensor:
    """Least squares of log(moved / target) with weights target²; entries of other sign are left out."""
    weights, weighted = {}, {}
    for name, value in target.items():
        ratio = moved[name] / value
        same = ratio > 0
        weights[name] = trust[name] * value.square() * same
        weighted[name] = weights[name] * torch.where(same, ratio, 1.0).log()
    return _solved(channels, second_derivatives(channels, weights), first_derivatives(channels, weighted))


def _solved(channels: Channels, matrix: Tensor, right: Tensor) -> Tensor:
    square = matrix[channels.free][:, channels.free]
    # Channels that nothing reads or that are zero leave the matrix singular.
    square.diagonal().add_(1e-12 * float(square.diagonal().mean()))
    return channels.embedded(torch.linalg.solve(square, right[channels.free]))
