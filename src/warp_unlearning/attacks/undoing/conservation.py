"""*conservation*: the factors of an update taken in a moved basis, solved for.

The channels' factors multiply the update, and the law of `conservation_law` holds for a gradient alone: one equation
for every unknown. The system has other solutions, so it is approached from the factors that fit the lengths of probe
gradients, held near them by a pull that is let go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...linalg.gram import gram
from .channel_factors import Channels, all_pinned, first_derivatives, rescaled, second_derivatives
from .conservation_law import ConservationLaw, Flows
from .kernels import kernel_lengths
from .probe_gradients import ProbeGradients
from .protocol import Held, NamedStep, Undo, Weights
from .solving import solved
from .states import CleanedDifference, at_length_of

_PULLS = (1.0, 0.1, 0.01, 0.001, 0.0)
_STEPS = 6
_TINY = 1e-14


@dataclass(frozen=True)
class Conservation(NamedStep):
    """The difference with every channel's factor taken out, at its own length.

    For updates with batch norm in eval mode: in train mode the loss does not depend on the scale of what enters a batch
    norm, and the law says less. Works on networks that torch.fx can trace. Costs some thirty dense solves with as many
    unknowns as there are free channels (7,680 in ResNet-18: seconds on a GPU, many minutes on a processor).
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
    logs, flows = start, law.flows(delta)
    for pull in _PULLS:
        logs = _approach(law, flows, start, logs, pull)
    return rescaled(law.channels, delta, logs)


def _approach(law: ConservationLaw, flows: Flows, start: Tensor, logs: Tensor, pull: float) -> Tensor:
    """Levenberg-Marquardt on Σ_c (violation / flow)² + pull · ‖logs − start‖²."""
    damping = 1e-3

    def state(at: Tensor) -> tuple[float, Tensor, Tensor]:
        total, slope, size = law.violations(flows, at)
        off = (at - start)[:-1]
        matrix, error = slope / size[:, None], total / size
        height = float(error.square().sum() + pull * off.square().sum())
        curvature = gram(matrix)
        curvature.diagonal().add_(pull)
        return height, curvature, matrix.mT @ error + pull * off

    height, curvature, slope = state(logs)
    for _ in range(_STEPS):
        ridge = damping * (curvature.diagonal() + 1e-9).diag()
        step = law.channels.embedded(solved(curvature + ridge, -slope).clamp(-1, 1))
        reached = state(logs + step)
        if reached[0] < height:
            (height, curvature, slope), logs, damping = reached, logs + step, damping / 5
        else:
            damping *= 5
    return logs


def _fitted_factors(channels: Channels, delta: Weights, expected: Weights) -> Tensor:
    """The logarithms x that bring the kernels of the difference nearest to the expected lengths: least squares of
    log expected − log length − x·p − constant, with the expected lengths as weights.
    """
    # A kernel that never carries a gradient has no length to compare.
    lengths = {name: kernel_lengths(value, value.dim()) for name, value in delta.items()}
    weights = {name: expected[name] * (lengths[name] > 0) for name in delta}
    whole = {n: w * ((expected[n] + _TINY).log() - (lengths[n] + _TINY).log()) for n, w in weights.items()}
    n = channels.free
    rows, constant = first_derivatives(channels, weights), sum(w.sum() for w in weights.values())
    matrix = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=rows.device)
    matrix[:n, :n] = second_derivatives(channels, weights)
    matrix[:n, :n].diagonal().add_(1e-3 * matrix.diagonal().mean())
    matrix[n, :n] = matrix[:n, n] = rows
    matrix[n, n] = constant
    right = torch.cat([first_derivatives(channels, whole), torch.stack([w.sum() for w in whole.values()]).sum()[None]])
    return channels.embedded(solved(matrix, right)[:n])
