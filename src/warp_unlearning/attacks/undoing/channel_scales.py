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
from .protocol import Weights
from .solving import solved

_TRUST = 1e6
_STEPS = 20
_STALE = 1e-4
# An update alone has a small part of its energy along the orbit; a rescaling moves weights hundreds of times as far.
_VISIBLE = 10.0


def undo_scales(
    channels: Channels, original: Weights, unlearned: Weights, parameters: tuple[str, ...], *, reweightings: int = 0
) -> dict[str, Tensor]:
    """The nearest point of the orbit, or the weights as they are where no rescaling shows; all in float64.

    Where something else moved some tensors far, as a null-space move does, the factors are better read off the others:
    each reweighting gives every parameter tensor the inverse of its mean squared difference as weight, and fits again.
    """
    target, moved = with_deviations(channels, original), with_deviations(channels, unlearned)
    names = [name for name in target if name in set(parameters)]
    trust = dict.fromkeys(names, 1.0) | _trust_in_statistics(channels, target, moved, _TRUST)
    logs = _nearest(channels, target, moved, trust, _fit_of_logarithms(channels, target, moved, trust))
    if _distance(names, moved, target) <= _VISIBLE * _distance(names, rescaled(channels, moved, -logs), target):
        return dict(unlearned)
    for _ in range(reweightings):
        now = rescaled(channels, moved, -logs)
        off = {name: float((now[name] - target[name]).square().mean()) for name in names}
        most = max(off.values())
        if most == 0:
            break
        trust = {name: most / (off[name] + 1e-6 * most) for name in names}
        trust |= _trust_in_statistics(channels, target, moved, 1e6 * _TRUST)
        logs = _nearest(channels, target, moved, trust, logs)
    return {**unlearned, **with_variances(channels, rescaled(channels, moved, -logs))}


def _distance(names: list[str], one: Weights, other: Weights) -> float:
    """‖θ − θ′‖² over the named tensors."""
    return sum(float((one[name] - other[name]).square().sum()) for name in names)


def _trust_in_statistics(channels: Channels, target: Weights, moved: Weights, full: float) -> dict[str, float]:
    """The weight of every running mean and deviation."""
    trust: dict[str, float] = {}
    for deviation in channels.offsets:
        mean = deviation.removesuffix("running_var") + "running_mean"
        before, after = (weights[mean] / weights[deviation] for weights in (target, moved))
        alone = bool(((after - before).abs() <= _STALE * (1 + before.abs())).all())
        trust |= {mean: full if alone else 0.0, deviation: full if alone else 0.0}
    return trust


def _nearest(channels: Channels, target: Weights, moved: Weights, trust: dict[str, float], logs: Tensor) -> Tensor:
    """The logarithms that minimise Σ trust · (rescaled − target)², by Gauss-Newton."""
    for _ in range(_STEPS):
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
        ratio = moved[name] / torch.where(value == 0, 1.0, value)
        same = (ratio > 0) & (value != 0)
        weights[name] = trust[name] * value.square() * same
        weighted[name] = weights[name] * torch.where(same, ratio, 1.0).log()
    return _solved(channels, second_derivatives(channels, weights), first_derivatives(channels, weighted))


def _solved(channels: Channels, matrix: Tensor, right: Tensor) -> Tensor:
    # Channels that nothing reads or that are zero leave the matrix singular.
    matrix.diagonal().add_(1e-12 * matrix.diagonal().mean())
    return channels.embedded(solved(matrix, right))
