"""*conservation*: the factors of an update taken in a moved basis, solved for.

Rescaling a channel c does not change the loss, so the gradient of any loss obeys Σ_out θ·g − Σ_in θ·g = 0 over the
weights that lead into c and out of it. Into a batch norm in eval mode, with deviation s, mean m, weight γ and bias β,
leads ⟨W_i, g_i⟩ = γ (g_γ + g_β m / s). A batch norm without γ gives no equation for what enters it.

The channels' factors multiply the update, and the law holds for a gradient alone: one equation for every unknown. The
system has other solutions, so it is approached from the factors that fit the lengths of probe gradients, and held near
them by a pull that is let go.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ...linalg.subspace import gram
from .base import Held, Undo, Weights, at_length_of, cleaning
from .channels import (
    Channels,
    PairSums,
    all_pinned,
    channels_of,
    kernel_lengths,
    pair_sums,
    rescaled,
    solve_positive,
)
from .probes import ProbeGradients

_PULLS = (1.0, 0.1, 0.01, 0.001, 0.0)
_STEPS = 6
_TINY_LENGTH, _TINY_FLOW = 1e-14, 1e-28


@dataclass(frozen=True)
class Conservation:
    """The difference with every channel's factor taken out, at its own length.

    For updates with batch norm in eval mode: in train mode the loss does not depend on the scale of what enters a batch
    norm, and the law says less. Works on networks that torch.fx can trace. Costs some thirty dense solves with as many
    unknowns as there are free channels (7,680 in ResNet-18: a second on a GPU, many minutes on a processor).
    """

    name: ClassVar[str] = "conservation"

    def prepared(self, held: Held) -> Undo:
        """Trace the original and take the probe gradients."""
        law = held.once(ConservationLaw)
        if law.channels.free == 0:
            raise all_pinned(held)
        probes = held.once(ProbeGradients)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            start = _fitted_factors(law.channels, delta, probes.lengths_near(delta))
            point = _Point(law, law.flows(delta), start)
            for pull in _PULLS:
                point = _approach(point, start, pull)
            return at_length_of(rescaled(law.channels, delta, point.logs), delta)

        return cleaning(held, clean)


@dataclass(frozen=True, eq=False)
class Flows:
    """θ·g and |θ·g| summed between pairs of channels, and γ (g_γ + g_β m / s) of every batch norm."""

    products: PairSums
    sizes: PairSums
    norms: Tensor


class ConservationLaw:
    """The law for the gradients of one network in eval mode, at the weights it has."""

    def __init__(self, held: Held) -> None:
        self.channels = held.once(channels_of)
        self._weights = {name: held.weights[name] for name in held.parameters}
        self._known = torch.ones(self.channels.free + 1, dtype=torch.bool, device=held.device)
        # m / s of every batch norm, by its name, and the classes of the channels that enter it and leave it.
        self._offsets: dict[str, Tensor] = {}
        entering = [torch.zeros(0, dtype=torch.long, device=held.device)]
        leaving = list(entering)
        ends, w = self.channels.ends, held.weights
        for name, module in held.model.named_modules():
            if not isinstance(module, _BatchNorm) or f"{name}.running_mean" not in ends:
                continue
            classes = ends[f"{name}.running_mean"][0]
            if f"{name}.weight" not in ends:
                self._known[classes] = False
                continue
            self._offsets[name] = w[f"{name}.running_mean"] / (w[f"{name}.running_var"] + module.eps).sqrt()
            entering.append(classes)
            leaving.append(ends[f"{name}.weight"][0])
        self._entering, self._leaving = torch.cat(entering), torch.cat(leaving)

    def flows(self, gradient: Weights) -> Flows:
        """What flows between channels for this gradient."""
        products = {name: weight * gradient[name] for name, weight in self._weights.items()}
        sizes = {name: value.abs() for name, value in products.items()}
        norms = [next(iter(products.values())).new_zeros(0)]
        for name, offset in self._offsets.items():
            flow = gradient[f"{name}.weight"]
            if f"{name}.bias" in gradient:
                flow = flow + gradient[f"{name}.bias"] * offset
            norms.append(self._weights[f"{name}.weight"] * flow)
        return Flows(pair_sums(self.channels, products), pair_sums(self.channels, sizes), torch.cat(norms))

    def violations(self, flows: Flows, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For a gradient that is multiplied by factors with these logarithms, and each free class: what flows in less
        what flows out, its derivatives in the logarithms, and the sum of absolute flows.
        """
        n = self.channels.free
        through = flows.norms * logs[self._leaving].exp()
        # The class of the channels that stay has no equation and no factor.
        into, sizes = (through.new_zeros(n + 1).index_add(0, self._entering, t)[:n] for t in (through, through.abs()))
        slope = flows.products.second(logs)
        moving = (self._entering < n) & (self._leaving < n)
        slope.index_put_((self._entering[moving], self._leaving[moving]), -through[moving], accumulate=True)
        total, size = flows.products.first(logs) - into, flows.sizes.totals(logs) + sizes
        known = self._known[:n]
        return total * known, slope.mul_(known[:, None]), size + _TINY_FLOW


class _Point:
    """Errors (violation / flow) at some logarithms, and their derivatives."""

    def __init__(self, law: ConservationLaw, flows: Flows, logs: Tensor) -> None:
        self._law, self._flows, self.logs = law, flows, logs
        total, slope, size = law.violations(flows, logs)
        self._error, self._slope = total / size, slope / size[:, None]

    def height(self, start: Tensor, pull: float) -> float:
        return float(self._error.square().sum() + pull * (self.logs - start)[:-1].square().sum())

    def after_step(self, start: Tensor, pull: float, damping: float) -> _Point:
        """The point a damped Gauss-Newton step down the height away."""
        curvature = self._curvature.clone()
        curvature.diagonal().add_(pull)
        curvature.diagonal().add_(damping * (curvature.diagonal() + 1e-9))
        slope = self._slope.mT @ self._error + pull * (self.logs - start)[:-1]
        step = solve_positive(curvature, -slope).clamp(-1, 1)
        return _Point(self._law, self._flows, self.logs + self._law.channels.embedded(step))

    @cached_property
    def _curvature(self) -> Tensor:
        # Most of the work of a step: computed once for all pulls, and only at points that are kept.
        return gram(self._slope.mT[None])[0]


def _approach(at: _Point, start: Tensor, pull: float) -> _Point:
    """Levenberg-Marquardt on Σ_c error² + pull · ‖logs − start‖²."""
    damping, height = 1e-3, at.height(start, pull)
    for _ in range(_STEPS):
        tried = at.after_step(start, pull, damping)
        reached = tried.height(start, pull)
        if reached < height:
            at, height, damping = tried, reached, damping / 5
        else:
            damping *= 5
    return at


def _fitted_factors(channels: Channels, delta: Weights, expected: Weights) -> Tensor:
    """The logarithms x that bring the kernels of the difference nearest to the expected lengths: least squares of
    log expected − log length − (x_a − x_b) − constant, with the expected lengths as weights.
    """
    lengths = {name: kernel_lengths(value, value.dim()) for name, value in delta.items()}
    # A kernel that never carries a gradient has no length to compare.
    weights = {name: expected[name] * (lengths[name] > 0) for name in delta}
    weighted = {
        n: w * ((expected[n] + _TINY_LENGTH).log() - (lengths[n] + _TINY_LENGTH).log()) for n, w in weights.items()
    }
    n = channels.free
    sums = pair_sums(channels, weights)
    rows, right = sums.first(), pair_sums(channels, weighted).first()
    constant, last = (torch.stack([w.sum() for w in each.values()]).sum() for each in (weights, weighted))
    matrix = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=rows.device)
    matrix[:n, :n] = sums.second()
    matrix[:n, :n].diagonal().add_(1e-3 * matrix.diagonal().mean())
    matrix[n, :n] = matrix[:n, n] = rows
    matrix[n, n] = constant
    return channels.embedded(solve_positive(matrix, torch.cat([right, last[None]]))[:n])
