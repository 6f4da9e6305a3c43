"""The factors of a network's channels, found again: the point of its orbit that lies nearest to the original.

min_x Σ (T_x⁻¹θ_u − θ_org)², jointly over all tensors in which a channel stands. The loss does not change along an
orbit, so that its gradient is orthogonal to it: a gradient step off the original ends, to first order, where its orbit
comes nearest. That is why a move made after the update hides nothing from this attacker.

Running statistics that updates in eval mode left alone tell the factors of what enters a batch norm outright. The mean
over the deviation of a channel, which no factor changes, says whether they were left alone; where they were not
(updates in train mode), they have no weight.

The nearest point of an orbit differs from the original by nothing along the orbit. Where the network was not rescaled,
that would take a part of the update away, the part from which factors of an update in a moved basis can be told; so
weights that no rescaling brings much nearer to the original stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .channel_factors import (
    Channels,
    first_derivatives,
    rescaled,
    second_derivatives,
    with_deviations,
    with_variances,
)
from .pair_sums import by_kernel, pair_sums
from .protocol import Weights
from .solving import solved_positive

_TRUST = 1e6
_STEPS = 20
_STALE = 1e-4
# An update alone has a small part of its energy along the orbit; a rescaling moves weights hundreds of times as far.
_VISIBLE = 10.0


class ChannelScales:
    """The nearest point of the orbit to an original, for one unlearned state; all in float64."""

    def __init__(self, channels: Channels, original: Weights, unlearned: Weights, parameters: tuple[str, ...]) -> None:
        self._channels, self._unlearned = channels, unlearned
        self._target, self._moved = with_deviations(channels, original), with_deviations(channels, unlearned)
        self._names = [name for name in self._target if name in set(parameters)]
        self._alone = _statistics_left_alone(channels, self._target, self._moved)
        self._squares = {name: by_kernel(value.square()) for name, value in self._moved.items()}
        self._products = {name: by_kernel(value * self._target[name]) for name, value in self._moved.items()}
        trust = dict.fromkeys(self._names, 1.0) | self._trust_in_statistics(_TRUST)
        self._logs = self._nearest(trust, _fit_of_logarithms(channels, self._target, self._moved, trust))
        near = rescaled(channels, self._moved, -self._logs)
        before, after = torch.stack([self._squared_off(w).sum() for w in (self._moved, near)]).tolist()
        self.visible = before > _VISIBLE * after

    def undone(self, *, reweightings: int = 0) -> dict[str, Tensor]:
        """The nearest point, or the weights as they are where no rescaling shows.

        Where something else moved some tensors far, as a null-space move does, the factors are better read off the
        others: each reweighting gives every parameter tensor the inverse of its mean squared difference as weight, and
        fits again.
        """
        if not self.visible:
            return dict(self._unlearned)
        logs = self._logs
        for _ in range(reweightings):
            trust = self._trust_by_distance(logs)
            if trust is None:
                break
            logs = self._nearest(trust, logs)
        return {**self._unlearned, **with_variances(self._channels, rescaled(self._channels, self._moved, -logs))}

    def _trust_by_distance(self, logs: Tensor) -> dict[str, float] | None:
        """The inverse of the mean squared differences; None where nothing differs."""
        sums = self._squared_off(rescaled(self._channels, self._moved, -logs)).tolist()
        off = {name: total / self._target[name].numel() for name, total in zip(self._names, sums, strict=True)}
        most = max(off.values())
        if most == 0:
            return None
        return {n: most / (off[n] + 1e-6 * most) for n in off} | self._trust_in_statistics(1e6 * _TRUST)

    def _squared_off(self, weights: Weights) -> Tensor:
        """‖θ − θ_org‖² of each parameter tensor."""
        return torch.stack([(weights[name] - self._target[name]).square().sum() for name in self._names])

    def _trust_in_statistics(self, full: float) -> dict[str, float]:
        """The weight of every running mean and deviation."""
        return {name: full if alone else 0.0 for name, alone in self._alone.items()}

    def _nearest(self, trust: dict[str, float], logs: Tensor) -> Tensor:
        """The logarithms that minimise Σ trust · (rescaled − target)², by Gauss-Newton.

        With v = moved · f the rescaled weights, the slope of half of it is that of Σ trust · (v² / 2 − v · target).
        """
        channels = self._channels
        squares = pair_sums(channels, {n: trust[n] * v for n, v in self._squares.items()})
        products = pair_sums(channels, {n: trust[n] * v for n, v in self._products.items()})
        for _ in range(_STEPS):
            slope = squares.first(-2 * logs) - products.first(-logs)
            step = _solved(channels, squares.second(-2 * logs), slope)
            logs = logs + step.clamp(-1, 1)
            if float(step.abs().max()) < 1e-6:
                break
        return logs


def _statistics_left_alone(channels: Channels, target: Weights, moved: Weights) -> dict[str, bool]:
    """For every running mean and deviation whether its batch norm's were left alone."""
    means = {deviation: deviation.removesuffix("running_var") + "running_mean" for deviation in channels.offsets}
    if not means:
        return {}
    kept = []
    for deviation, mean in means.items():
        before, after = (weights[mean] / weights[deviation] for weights in (target, moved))
        kept.append(((after - before).abs() <= _STALE * (1 + before.abs())).all())
    found: dict[str, bool] = {}
    for (deviation, mean), alone in zip(means.items(), torch.stack(kept).tolist(), strict=True):
        found |= {mean: alone, deviation: alone}
    return found


def _fit_of_logarithms(channels: Channels, target: Weights, moved: Weights, trust: dict[str, float]) -> Tensor:
    """Least squares of log(moved / target) with weights target²; entries of other sign are left out."""
    weights, weighted = {}, {}
    for name, value in target.items():
        ratio = moved[name] / torch.where(value == 0, 1.0, value)
        same = (ratio > 0) & (value != 0)
        weights[name] = trust[name] * value.square() * same
        weighted[name] = weights[name] * torch.where(same, ratio, 1.0).log()
    return _solved(channels, second_derivatives(channels, weights), first_derivatives(channels, weighted))


def _solved(channels: Channels, matrix: Tensor, right: Tensor) -> Tensor:
    # Channels that nothing reads or that are zero leave the matrix singular.
    matrix.diagonal().add_(1e-12 * matrix.diagonal().mean())
    return channels.embedded(solved_positive(matrix, right))
