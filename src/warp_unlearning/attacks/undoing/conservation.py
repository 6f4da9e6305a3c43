"""*conservation*: the factors of an update taken in a moved basis, solved for.

The channels' factors multiply the update, and the law of `conservation_law` holds for a gradient alone: one equation
for every unknown. The system has other solutions, so it is approached from the factors that fit the lengths of probe
gradients, held near them by a pull that is let go.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ...linalg.subspace import gram
from .channel_factors import Channels, all_pinned, first_derivatives, rescaled
from .conservation_law import ConservationLaw, Flows
from .kernels import kernel_lengths
from .pair_sums import pair_sums
from .probe_gradients import ProbeGradients
from .protocol import Held, NamedStep, Undo, Weights
from .solving import solved_positive
from .states import CleanedDifference, at_length_of

_PULLS = (1.0, 0.1, 0.01, 0.001, 0.0)
_STEPS = 6
_TINY = 1e-14


@dataclass(frozen=True)
class Conservation(NamedStep):
    """The difference with every channel's factor taken out, at its own length.

    For updates with batch norm in eval mode: in train mode the loss does not depend on the scale of what enters a batch
    norm, and the law says less. Works on networks that torch.fx can trace. Costs some thirty dense solves with as many
    unknowns as there are free channels (7,680 in ResNet-18: a second on a GPU, many minutes on a processor).
    """

    step_name: ClassVar[str] = "conservation"

    def prepared(self, held: Held) -> Undo:
        """Trace the original and take the probe gradients."""
        law = held.once(ConservationLaw)
        if law.channels.free == 0:
            raise all_pinned(held, "scale")
        probes = held.once(ProbeGradients)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            return at_length_of(_without_factors(law, delta, probes), delta)

        return CleanedDifference(held, clean)


def _without_factors(law: ConservationLaw, delta: Weights, probes: ProbeGradients) -> dict[str, Tensor]:
    """Factors that fit the probe gradients' lengths, then factors that obey the law."""
    start = _fitted_factors(law.channels, delta, probes.lengths_near(delta))
    flows = law.flows(delta)
    reached = _Point(law, flows, start)
    for pull in _PULLS:
        reached = _approach(reached, start, pull)
    return rescaled(law.channels, delta, reached.logs)


class _Point:
    """Errors (violation / flow) at some logarithms, and their derivatives."""

    def __init__(self, law: ConservationLaw, flows: Flows, logs: Tensor) -> None:
        self._law, self._flows, self.logs = law, flows, logs
        total, slope, size = law.violations(flows, logs)
        self._error, self._slope = total / size, slope / size[:, None]

    def height(self, start: Tensor, pull: float) -> float:
        """Σ_c error² + pull · ‖logs − start‖²."""
        return float(self._error.square().sum() + pull * (self.logs - start)[:-1].square().sum())

    def descent(self, start: Tensor, pull: float, damping: float) -> Tensor:
        """The damped step of Gauss and Newton down this height, for every class."""
        curvature = self._curvature.clone()
        curvature.diagonal().add_(pull)
        curvature.diagonal().add_(damping * (curvature.diagonal() + 1e-9))
        slope = self._slope.mT @ self._error + pull * (self.logs - start)[:-1]
        return self._law.channels.embedded(solved_positive(curvature, -slope).clamp(-1, 1))

    def moved(self, step: Tensor) -> _Point:
        """The point a step away."""
        return _Point(self._law, self._flows, self.logs + step)

    @cached_property
    def _curvature(self) -> Tensor:
        # Most of the work of a step: not done at points that are not kept, and once for all pulls.
        return gram(self._slope.mT[None])[0]


def _approach(at: _Point, start: Tensor, pull: float) -> _Point:
    """Levenberg-Marquardt on the height."""
    damping, height = 1e-3, at.height(start, pull)
    for _ in range(_STEPS):
        tried = at.moved(at.descent(start, pull, damping))
        reached = tried.height(start, pull)
        if reached < height:
            at, height, damping = tried, reached, damping / 5
        else:
            damping *= 5
    return at


def _fitted_factors(channels: Channels, delta: Weights, expected: Weights) -> Tensor:
    """The logarithms x that bring the kernels of the difference nearest to the expected lengths: least squares of
    log expected − log length − x·p − constant, with the expected lengths as weights.
    """
    # A kernel that never carries a gradient has no length to compare.
    lengths = {name: kernel_lengths(value, value.dim()) for name, value in delta.items()}
    weights = {name: expected[name] * (lengths[name] > 0) for name in delta}
    whole = {n: w * ((expected[n] + _TINY).log() - (lengths[n] + _TINY).log()) for n, w in weights.items()}
    n = channels.free
    sums = pair_sums(channels, weights)
    rows, constant = sums.first(), torch.stack([w.sum() for w in weights.values()]).sum()
    matrix = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=rows.device)
    matrix[:n, :n] = sums.second()
    matrix[:n, :n].diagonal().add_(1e-3 * matrix.diagonal().mean())
    matrix[n, :n] = matrix[:n, n] = rows
    matrix[n, n] = constant
    right = torch.cat([first_derivatives(channels, whole), torch.stack([w.sum() for w in whole.values()]).sum()[None]])
    return channels.embedded(solved_positive(matrix, right)[:n])
