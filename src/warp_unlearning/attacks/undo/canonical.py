"""*canonical*: a permutation and a rescaling of channels undone against the original.

**Order.** Channels are matched by the directions of the slices that they fill, in weights of a form that no rescaling
changes (`balanced`): set after set from the input on, as an assignment of the largest sum of cosines. A slice is
informative once the channels along the tensor's other axes are in place. So the first layer is matched by its inputs,
the next by the first, and so on; later rounds use all slices.

**Scales.** min_x Σ (T_x⁻¹θ_u − θ_org)², over all tensors at once: the point of the orbit of θ_u that is nearest to the
original. The loss is constant along an orbit and its gradient orthogonal to it, so a gradient step off the original
ends, to first order, where its orbit comes nearest. That is why a move made after the update hides nothing here.

Running statistics that updates in eval mode left alone give the factors of what enters a batch norm exactly. The mean
over the deviation of a channel, which no factor changes, shows whether they were left alone; if not (updates in train
mode), they have no weight.

The nearest point differs from the original by nothing along the orbit. Without a rescaling, that would remove a part of
the update, the part that shows the factors of an update in a moved basis. So weights that no rescaling brings much
nearer to the original stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from ...symmetry.channel_graph import ChannelGraph
from .base import Held, Undo, Weights, cached, checked_state, with_shared_names
from .channels import (
    Channels,
    all_pinned,
    channels_of,
    over_taps,
    pair_sums,
    rescaled,
    solve_positive,
    tap_sums,
    traced,
    with_deviations,
    with_variances,
)

_BALANCE_ROUNDS, _BALANCED = 50, 1e-6
_ORDER_ROUNDS = 3
_FIT_STEPS = 20
# The weight of running statistics beside that of parameters, and how little they change where nothing updated them.
_TRUST, _STALE = 1e6, 1e-4
# An update alone has a small part of its energy along the orbit; a rescaling moves weights hundreds of times as far.
_VISIBLE = 10.0


@dataclass(frozen=True)
class Canonical:
    """Puts channels back where the original has them, then divides them by the factors that bring the weights nearest
    to the original's. Works on networks that torch.fx can trace; attention heads' own bases are not looked for.

    In each of `reweightings` further fits, tensors that stay far from the original lose weight: for a rescaling that
    was made beside another move.
    """

    name: ClassVar[str] = "canonical"

    reweightings: int = 0

    def prepared(self, held: Held) -> Undo:
        """Trace the original."""
        order, channels = held.once(ChannelOrder), held.once(channels_of)
        if channels.free == 0 and not order.sets:
            raise all_pinned(held)

        def undo(unlearned: Weights) -> dict[str, Tensor]:
            given = cached(unlearned)
            scales = given.once(
                ("scales", held), lambda: _Scales(held, channels, order.undone(checked_state(held, given)))
            )
            return with_shared_names(held, scales.undone(reweightings=self.reweightings))

        return undo


def balanced(weight: Tensor, *, blocks: int = 1) -> Tensor:
    """The weight (out, in, *taps) with kernels rescaled so that Σ_j ‖W_ij‖² = 1 for every row and Σ_i ‖W_ij‖² is the
    same for every column; each of `blocks` blocks of rows by itself. Rows and columns of zeros stay.

    Factors of channels turn the energies E_ij = ‖W_ij‖² into r_i E_ij c_j, and one matrix of that form has equal sums
    of rows and of columns (Sinkhorn). So the result is the same whatever the factors were.
    """
    energies = tap_sums(weight.square())
    energies = energies.reshape(blocks, -1, energies.shape[1])
    rows, columns = torch.ones_like(energies[:, :, 0]), torch.ones_like(energies[:, 0])
    share = energies.shape[1] / energies.shape[2]
    for _ in range(_BALANCE_ROUNDS):
        before = rows
        rows = _inverse((energies @ columns.unsqueeze(2)).squeeze(2))
        columns = share * _inverse((rows.unsqueeze(1) @ energies).squeeze(1))
        if bool(((rows - before).abs() <= _BALANCED * rows).all()):
            break
    rows = _inverse((energies @ columns.unsqueeze(2)).squeeze(2))
    factors = (rows.unsqueeze(2) * columns.unsqueeze(1)).sqrt().reshape(weight.shape[:2])
    return weight * over_taps(factors, weight)


def _inverse(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, 1 / sums.clamp(min=1e-300), 0.0)


@dataclass(frozen=True, eq=False)
class _Slice:
    """Where the channels of a set stand along one axis of some rows of a tensor, (channels, times), and the channels
    along the tensor's other axes.
    """

    name: str
    rows: slice
    axis: int
    places: Tensor
    others: frozenset[int]

    def taken(self, weights: Weights) -> Tensor:
        part = weights[self.name][self.rows].index_select(self.axis, self.places.flatten()).movedim(self.axis, 0)
        return part.reshape(len(self.places), -1)

    def reorder(self, weights: dict[str, Tensor], order: Tensor) -> None:
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
        self.sets = [(members, _slices(graph, members, held)) for members in graph.exchangeable()]

    def undone(self, unlearned: Weights) -> dict[str, Tensor]:
        """The unlearned weights with channels where the original has them."""
        found = dict(unlearned)
        forms = self._balanced(unlearned, set(self._original))
        unsettled = {channel for members, _ in self.sets for channel in members}
        for _ in range(_ORDER_ROUNDS):
            changed = False
            for members, slices in self.sets:
                informative = [s for s in slices if s.name in forms]
                order = self._matching([s for s in informative if not s.others & unsettled] or informative, forms)
                unsettled -= set(members)
                if order is None or torch.equal(order, torch.arange(len(order), device=order.device)):
                    continue
                changed = True
                for s in slices:
                    s.reorder(found, order)
                for s in informative:
                    s.reorder(forms, order)
            if not changed:
                break
        return found

    def _matching(self, slices: list[_Slice], forms: Weights) -> Tensor | None:
        if not slices:
            return None
        units = [[normalize(s.taken(w), dim=1, eps=1e-300) for w in (self._original, forms)] for s in slices]
        likeness = torch.stack([one @ other.mT for one, other in units]).sum(0)
        order = linear_sum_assignment(-likeness.cpu().numpy())[1]
        return torch.as_tensor(order, device=likeness.device)

    def _balanced(self, weights: Weights, names: set[str]) -> dict[str, Tensor]:
        return {n: balanced(weights[n], blocks=self._blocks.get(n, 1)) for n in sorted(names) if weights[n].dim() > 1}


def _slices(graph: ChannelGraph, members: list[int], held: Held) -> list[_Slice]:
    found = []
    for use in graph.uses:
        # Exchangeable channels stand in a tensor equally often.
        places = (torch.tensor(members)[:, None] == graph.channels(use)).nonzero()[:, 1].reshape(len(members), -1)
        if places.numel() == 0:
            continue
        rows = slice(None)
        if use.blocks > 1:
            # And those of a grouped convolution belong to one block.
            width, height = len(use.ids) // use.blocks, len(held.weights[use.name]) // use.blocks
            block = int(places[0, 0]) // width
            rows, places = slice(block * height, (block + 1) * height), places % width
        beside = [u for u in graph.uses if u.name == use.name and u.axis != use.axis]
        others = frozenset(channel for u in beside for channel in graph.channels(u).tolist())
        found.append(_Slice(use.name, rows, use.axis, places.to(held.device), others))
    return found


class _Scales:
    """The nearest point of the orbit to the original, for one unlearned state in its order."""

    def __init__(self, held: Held, channels: Channels, unlearned: dict[str, Tensor]) -> None:
        self._channels, self._unlearned = channels, unlearned
        self._visible = False
        if channels.free == 0:
            return
        self._target, self._moved = (with_deviations(channels, weights) for weights in (held.weights, unlearned))
        self._names = [name for name in self._target if name in held.parameters]
        self._left_alone = self._statistics_left_alone()
        self._squares = {name: tap_sums(value.square()) for name, value in self._moved.items()}
        self._products = {name: tap_sums(value * self._target[name]) for name, value in self._moved.items()}
        trust = dict.fromkeys(self._names, 1.0) | self._trust_in_statistics(_TRUST)
        self._logs = self._nearest(trust, self._fit_of_logarithms(trust))
        before, after = (sum(self._squares_off(logs).values()) for logs in (torch.zeros_like(self._logs), self._logs))
        self._visible = before > _VISIBLE * after

    def undone(self, *, reweightings: int) -> dict[str, Tensor]:
        """The nearest point, or the weights as they are where no rescaling is visible.

        Where something else moved some tensors far, as a null-space move does, the factors are better read off the
        others: each reweighting weights every parameter tensor by the inverse of its mean squared difference, and fits
        again.
        """
        if not self._visible:
            return dict(self._unlearned)
        logs = self._logs
        for _ in range(reweightings):
            off = {name: total / self._target[name].numel() for name, total in self._squares_off(logs).items()}
            most = max(off.values())
            if most == 0:
                break
            trust = {name: most / (value + 1e-6 * most) for name, value in off.items()}
            logs = self._nearest(trust | self._trust_in_statistics(1e6 * _TRUST), logs)
        near = rescaled(self._channels, self._moved, -logs)
        return {**self._unlearned, **with_variances(self._channels, near)}

    def _squares_off(self, logs: Tensor) -> dict[str, float]:
        near = rescaled(self._channels, {name: self._moved[name] for name in self._names}, -logs)
        sums = torch.stack([(near[name] - self._target[name]).square().sum() for name in self._names])
        return dict(zip(self._names, sums.tolist(), strict=True))

    def _trust_in_statistics(self, full: float) -> dict[str, float]:
        return {name: full if alone else 0.0 for name, alone in self._left_alone.items()}

    def _statistics_left_alone(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for deviation in self._channels.offsets:
            mean = deviation.removesuffix("running_var") + "running_mean"
            before, after = (weights[mean] / weights[deviation] for weights in (self._target, self._moved))
            found[mean] = found[deviation] = bool(((after - before).abs() <= _STALE * (1 + before.abs())).all())
        return found

    def _nearest(self, trust: dict[str, float], logs: Tensor) -> Tensor:
        """The logarithms that minimise Σ trust · (rescaled − target)² / 2, by Gauss-Newton.

        With v the rescaled weights, the slope is that of Σ trust · (v² / 2 − v · target).
        """
        squares = pair_sums(self._channels, {n: trust[n] * v for n, v in self._squares.items()})
        products = pair_sums(self._channels, {n: trust[n] * v for n, v in self._products.items()})
        for _ in range(_FIT_STEPS):
            slope = squares.first(-2 * logs) - products.first(-logs)
            step = self._solved(squares.second(-2 * logs), slope)
            logs = logs + step.clamp(-1, 1)
            if float(step.abs().max()) < 1e-6:
                break
        return logs

    def _fit_of_logarithms(self, trust: dict[str, float]) -> Tensor:
        """Least squares of log(moved / target) with weights target²; entries of other sign are left out."""
        weights, weighted = {}, {}
        for name, value in self._target.items():
            ratio = self._moved[name] / torch.where(value == 0, 1.0, value)
            same = (ratio > 0) & (value != 0)
            weights[name] = trust[name] * value.square() * same
            weighted[name] = weights[name] * torch.where(same, ratio, 1.0).log()
        return self._solved(pair_sums(self._channels, weights).second(), pair_sums(self._channels, weighted).first())

    def _solved(self, matrix: Tensor, right: Tensor) -> Tensor:
        # Channels that nothing reads or that are zero leave the matrix singular.
        matrix.diagonal().add_(1e-12 * matrix.diagonal().mean())
        return self._channels.embedded(solve_positive(matrix, right))
