"""Gradients of points that an attacker holds, at the original weights: what the gradient of an example looks like."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from channel_factors import Weights
from torch import Tensor, nn

from warp_unlearning.gradients.per_sample import per_sample_gradients

NEIGHBOURS = 8
CHUNK = 32


@dataclass(frozen=True, eq=False)
class ProbeGradients:
    """Gradients (points, *shape) by parameter name, each of unit length over all parameters."""

    gradients: dict[str, Tensor]

    def lengths_near(self, delta: Weights) -> dict[str, Tensor]:
        """The root mean square length of each kernel over the points whose kernels point most nearly where those of the
        difference do, long kernels counting more: the largest Σ_k ‖q_k‖ ⟨q_k, δ_k / ‖δ_k‖⟩.
        """
        alike = []
        for name, g in self.gradients.items():
            there = directions(delta[name], delta[name].dim())
            lengths = kernels(g, delta[name].dim()).norm(dim=-1, keepdim=True)
            alike.append((g.flatten(1) * (lengths * there).flatten(1)).sum(1))
        nearest = torch.stack(alike).sum(0).topk(NEIGHBOURS).indices
        chosen = {name: kernels(g[nearest], delta[name].dim()).norm(dim=-1) for name, g in self.gradients.items()}
        return {name: lengths.square().mean(0).sqrt() for name, lengths in chosen.items()}


def probe_gradients(model: nn.Module, x: Tensor, y: Tensor) -> ProbeGradients:
    """The gradients of every point's loss; those of length 0 stay 0."""
    parts = [
        per_sample_gradients(model, *part)[0] for part in zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True)
    ]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    lengths = torch.stack([g.flatten(1).square().sum(1) for g in found.values()]).sum(0).sqrt().clamp(min=1e-300)
    return ProbeGradients({name: g / lengths.reshape(-1, *[1] * (g.dim() - 1)) for name, g in found.items()})


def kernels(value: Tensor, dims: int) -> Tensor:
    """A parameter of so many dimensions, or a stack of them, as kernels along a last axis; single numbers where it is
    no two-dimensional convolution.
    """
    return value.flatten(-2) if dims == 4 else value.unsqueeze(-1)


def directions(value: Tensor, dims: int) -> Tensor:
    """Kernels of unit length, or 0."""
    found = kernels(value, dims)
    lengths: Tensor = found.norm(dim=-1, keepdim=True)
    return found / lengths.clamp(min=1e-300)
