"""Attackers on updates taken in a moved basis, where every channel scales the gradient by a factor that is not known.

A step taken in a basis with the factors τ is, in the original's coordinates, g_ij τ_j² / τ_i² for the kernel from
channel j to channel i: the direction of each kernel is that of the gradient, whatever the factors are.

- `by_directions` keeps the kernels' directions and takes their lengths from the gradients of probe points.
- `by_conservation` solves for the factors. The loss does not change when a channel c is rescaled, so that the gradient
  of any loss has Σ_out θ·g − Σ_in θ·g = 0 over the weights that lead into c and out of it: one equation for every
  unknown. Into a batch norm in eval mode, with deviation s, mean m, weight γ and bias β, lead ⟨W_i, g_i⟩ =
  γ (g_γ + g_β m / s). The system has other solutions, so it is approached from the factors that fit the lengths
  of probe gradients, held near them by a pull that is let go.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from channel_factors import Channels, Weights, channel_sums, first_derivatives, rescaled, second_derivatives
from probe_gradients import ProbeGradients, directions, kernels
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PULLS = (1.0, 0.1, 0.01, 0.001, 0.0)
STEPS = 6
TINY = 1e-14


def by_directions(delta: Weights, probes: ProbeGradients) -> dict[str, Tensor]:
    """The direction of every kernel of the difference, at the length that gradients like it have there."""
    lengths = probes.lengths_near(delta)
    return {
        name: (directions(value, value.dim()) * lengths[name].unsqueeze(-1)).reshape(value.shape)
        for name, value in delta.items()
    }


@dataclass(frozen=True, eq=False)
class _Norm:
    """A batch norm: the classes of the channels that enter and that leave, its name, and mean over deviation."""

    entering: Tensor
    leaving: Tensor
    name: str
    offset: Tensor


class Conservation:
    """The law for the gradients of one network in eval mode, at the weights it has."""

    def __init__(self, model: nn.Module, channels: Channels) -> None:
        self.channels = channels
        self.weights = {name: p.detach() for name, p in model.named_parameters()}
        self._norms = [_norm(name, m, channels) for name, m in model.named_modules() if isinstance(m, _BatchNorm)]

    def violations(self, gradient: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """For each free class what flows in less what flows out, the derivatives in the logarithms of the factors that
        the gradient is multiplied by, and the sum of absolute flows.
        """
        flows = {name: self.weights[name] * gradient[name] for name in self.weights}
        total = first_derivatives(self.channels, flows)
        slope = second_derivatives(self.channels, flows)
        size = channel_sums(self.channels, {n: f.abs() for n, f in flows.items()})
        for norm in self._norms:
            affine = [f"{norm.name}.weight", f"{norm.name}.bias"]
            flow = self.weights[affine[0]] * (gradient[affine[0]] + gradient[affine[1]] * norm.offset)
            total.index_add_(0, norm.entering, -flow)
            slope.index_put_((norm.entering, norm.leaving), -flow, accumulate=True)
            size.index_add_(0, norm.entering, flow.abs())
        free = self.channels.free
        return total[free], slope[free][:, free], size[free] + TINY**2


def by_conservation(law: Conservation, delta: Weights, probes: ProbeGradients) -> dict[str, Tensor]:
    """The difference with every channel's factor taken out: factors that fit the probe gradients' lengths, then factors
    that obey the law.
    """
    start = _fitted_factors(law.channels, delta, probes.lengths_near(delta))
    logs = start
    for pull in PULLS:
        logs = _approach(law, delta, start, logs, pull)
    return rescaled(law.channels, delta, logs)


def _approach(law: Conservation, delta: Weights, start: Tensor, logs: Tensor, pull: float) -> Tensor:
    """Levenberg-Marquardt on Σ_c (violation / flow)² + pull · ‖logs − start‖²."""
    free, damping = law.channels.free, 1e-3

    def state(at: Tensor) -> tuple[float, Tensor, Tensor]:
        total, slope, size = law.violations(rescaled(law.channels, delta, at))
        off = (at - start)[free]
        matrix, error = slope / size[:, None], total / size
        height = float(error.square().sum() + pull * off.square().sum())
        return height, matrix.mT @ matrix + pull * torch.eye(len(free)), matrix.mT @ error + pull * off

    height, curvature, slope = state(logs)
    for _ in range(STEPS):
        ridge = damping * (curvature.diagonal() + 1e-9).diag()
        step = law.channels.embedded(torch.linalg.solve(curvature + ridge, -slope).clamp(-1, 1))
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
    lengths = {name: kernels(value, value.dim()).norm(dim=-1) for name, value in delta.items()}
    weights = {name: expected[name] * (lengths[name] > 0) for name in delta}
    whole = {n: w * ((expected[n] + TINY).log() - (lengths[n] + TINY).log()) for n, w in weights.items()}
    free, n = channels.free, len(channels.free)
    matrix = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    matrix[:n, :n] = second_derivatives(channels, weights)[free][:, free]
    matrix[:n, :n].diagonal().add_(1e-3 * float(matrix.diagonal().mean()))
    matrix[n, :n] = matrix[:n, n] = first_derivatives(channels, weights)[free]
    matrix[n, n] = sum(float(w.sum()) for w in weights.values())
    constant = torch.tensor([sum(float(w.sum()) for w in whole.values())], dtype=torch.float64)
    right = torch.cat([first_derivatives(channels, whole)[free], constant])
    return channels.embedded(torch.linalg.solve(matrix, right)[:n])


def _norm(name: str, module: _BatchNorm, channels: Channels) -> _Norm:
    assert module.running_mean is not None
    assert module.running_var is not None
    entering, leaving = (channels.places[f"{name}.{part}"][0].classes for part in ("running_mean", "weight"))
    return _Norm(entering, leaving, name, module.running_mean / (module.running_var + module.eps).sqrt())
