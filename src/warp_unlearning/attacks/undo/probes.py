"""Gradients of the attacker's probes at the original, and *scale-free*, which gives a difference their lengths.

A step taken in a basis with the factors τ is, in the original's coordinates, g_ij τ_j² / τ_i² for the kernel from
channel j to channel i. So the direction of each kernel is that of the gradient, whatever the factors are; its length is
lost, and probe gradients say what it usually is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...gpu.precision import full_precision, math_attention
from ...gradients.per_sample import per_sample_gradients
from .base import Held, NotApplicable, Undo, Weights, at_length_of, cleaning
from .channels import kernel_directions, kernel_lengths, over_taps, tiny

# The number of probes used, fewer where a network is large: more cost time and add little.
_POINTS, _FEWEST, _NUMBERS = 128, 32, 2**28
_NEIGHBOURS = 8
# Examples and numbers in a chunk, and numbers kept from one use to the next; a GPU has room for four times as many.
_AT_ONCE, _CHUNK, _KEPT, _MORE_ON_GPU = 32, 2**27, 2**28, 4


def single_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The cross-entropy gradient of every example, (batch, *parameter) by name, without TF32.

    The model must be in eval mode. Raises `NotApplicable` for a network that cannot be mapped over examples, because
    its branches depend on values.
    """
    try:
        # Fused attention has no rule for gradients of single examples.
        with full_precision(), math_attention():
            return per_sample_gradients(model, x, y)[0]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotApplicable(f"gradients of single examples cannot be taken of this network ({error})") from error


class ProbeGradients:
    """Gradients (points, *parameter) by name, each of unit length over all parameters, in the model's precision.

    A gradient of length 0 stays 0. Small networks' gradients are kept; those of large ones are computed at each use.
    """

    def __init__(self, held: Held) -> None:
        self._model = held.model
        size = sum(p.numel() for p in held.model.parameters())
        points = min(_POINTS, max(_FEWEST, _NUMBERS // size))
        self._x, self._y = held.x[:points], held.y[:points]
        room = 1 if held.device.type == "cpu" else _MORE_ON_GPU
        self._at_once = max(1, min(_AT_ONCE, room * _CHUNK // size))
        self._kept = list(self._chunks(self._all())) if size * len(self) <= room * _KEPT else None

    def __len__(self) -> int:
        return len(self._y)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """All of them, chunk after chunk."""
        return iter(self._kept) if self._kept is not None else self._chunks(self._all())

    def lengths_near(self, delta: Weights) -> dict[str, Tensor]:
        """The root mean square length of each kernel over the points whose kernels point most nearly where those of the
        difference do, long kernels counting more: the largest Σ_k ‖q_k‖ ⟨q_k, δ_k / ‖δ_k‖⟩.
        """
        there = {name: kernel_directions(value, value.dim()).flatten() for name, value in delta.items()}
        alike = torch.cat([_likeness(chunk, there) for chunk in self])
        nearest = alike.topk(min(_NEIGHBOURS, len(self))).indices
        energies: dict[str, Tensor] = {}
        for chunk in self._chunks(nearest):
            for name, g in chunk.items():
                energy = kernel_lengths(g, g.dim() - 1).double().square().sum(0)
                energies[name] = energies[name] + energy if name in energies else energy
        return {name: (energy / len(nearest)).sqrt() for name, energy in energies.items()}

    def _all(self) -> Tensor:
        return torch.arange(len(self), device=self._x.device)

    def _chunks(self, points: Tensor) -> Iterator[dict[str, Tensor]]:
        for some in torch.split(points, self._at_once):
            found = single_gradients(self._model, self._x[some], self._y[some])
            energy = torch.stack([g.flatten(1).square().sum(1) for g in found.values()]).sum(0)
            lengths = energy.sqrt().clamp(min=tiny(energy))
            yield {name: g / over_taps(lengths, g) for name, g in found.items()}


def _likeness(chunk: dict[str, Tensor], there: Weights) -> Tensor:
    found = []
    for name, g in chunk.items():
        weighted = g * over_taps(kernel_lengths(g, g.dim() - 1), g)
        found.append(weighted.flatten(1) @ there[name].to(g.dtype))
    return torch.stack(found).sum(0)


@dataclass(frozen=True)
class ScaleFree:
    """Every kernel of the difference keeps its direction and gets the length that probe gradients like it have there;
    the whole keeps the length of the difference.
    """

    name: ClassVar[str] = "scale-free"

    def prepared(self, held: Held) -> Undo:
        """Take the probe gradients."""
        probes = held.once(ProbeGradients)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            lengths = probes.lengths_near(delta)
            found = {n: kernel_directions(v, v.dim()) * over_taps(lengths[n], v) for n, v in delta.items()}
            return at_length_of(found, delta)

        return cleaning(held, clean)
