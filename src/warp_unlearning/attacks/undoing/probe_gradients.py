"""Gradients of points that an attacker holds, at the original weights: what the gradient of an example looks like.

They are computed in chunks, and kept where they are small enough: a large network's take more memory than time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .kernels import directions, kernel_lengths, tiny
from .protocol import Held, Weights
from .single_gradients import single_gradients

# Gradients of so many of the probe points, fewer where a network is large; more cost time and add little.
_POINTS, _FEWEST = 128, 32
_NUMBERS = 2**28
_NEIGHBOURS = 8
# Numbers in a chunk, and numbers kept from one use to the next, on a processor and elsewhere.
_CHUNK, _CHUNK_ELSEWHERE = 2**27, 2**29
_KEPT, _KEPT_ELSEWHERE = 2**28, 2**30


class ProbeGradients:
    """Gradients (points, *shape) by parameter name, each of unit length over all parameters, in the model's precision.

    A gradient of length 0 stays 0.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        size = sum(p.numel() for p in held.model.parameters())
        points = min(_POINTS, max(_FEWEST, _NUMBERS // size))
        self.x, self.y = held.x[:points], held.y[:points]
        chunk, kept = (_CHUNK, _KEPT) if held.device.type == "cpu" else (_CHUNK_ELSEWHERE, _KEPT_ELSEWHERE)
        self._chunk = max(1, min(32, chunk // size))
        self._kept: list[dict[str, Tensor]] | None = None
        if size * len(self.y) <= kept:
            self._kept = list(self._chunks(torch.arange(len(self.y))))

    def __len__(self) -> int:
        return len(self.y)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """All of them, chunk after chunk."""
        return iter(self._kept) if self._kept is not None else self._chunks(torch.arange(len(self)))

    def lengths_near(self, delta: Weights) -> dict[str, Tensor]:
        """The root mean square length of each kernel over the points whose kernels point most nearly where those of the
        difference do, long kernels counting more: the largest Σ_k ‖q_k‖ ⟨q_k, δ_k / ‖δ_k‖⟩.
        """
        there = {name: directions(value, value.dim()).flatten() for name, value in delta.items()}
        alike = torch.cat([_likeness(chunk, there) for chunk in self])
        nearest = alike.topk(min(_NEIGHBOURS, len(self))).indices
        energies: dict[str, Tensor] = {}
        for chunk in self._of(nearest):
            for name, g in chunk.items():
                energy = kernel_lengths(g, g.dim() - 1).double().square().sum(0)
                energies[name] = energies[name] + energy if name in energies else energy
        return {name: (energy / len(nearest)).sqrt() for name, energy in energies.items()}

    def _of(self, points: Tensor) -> Iterator[dict[str, Tensor]]:
        if self._kept is None:
            return self._chunks(points.cpu())
        whole = {name: [chunk[name] for chunk in self._kept] for name in self._kept[0]}
        sizes = torch.tensor([0, *(len(g) for g in next(iter(whole.values())))]).cumsum(0)
        where = torch.searchsorted(sizes, points.cpu(), right=True) - 1
        inside = points.cpu() - sizes[where]
        pairs = list(zip(where.tolist(), inside.tolist(), strict=True))
        return iter([{name: torch.stack([parts[i][j] for i, j in pairs]) for name, parts in whole.items()}])

    def _chunks(self, points: Tensor) -> Iterator[dict[str, Tensor]]:
        for some in torch.split(points, self._chunk):
            index = some.to(self.x.device)
            found = single_gradients(self._held.model, self.x[index], self.y[index])
            energy = torch.stack([g.flatten(1).square().sum(1) for g in found.values()]).sum(0)
            lengths = energy.sqrt().clamp(min=tiny(energy))
            yield {name: g / lengths.reshape(-1, *[1] * (g.dim() - 1)) for name, g in found.items()}


def _likeness(chunk: dict[str, Tensor], there: Weights) -> Tensor:
    found = []
    for name, g in chunk.items():
        weighted = g.flatten(1) * _spread(kernel_lengths(g, g.dim() - 1), g).flatten(1)
        found.append(weighted @ there[name].to(g.dtype))
    return torch.stack(found).sum(0)


def _spread(lengths: Tensor, g: Tensor) -> Tensor:
    """One length for each kernel as one for each of its entries."""
    return lengths.reshape(*lengths.shape, *[1] * (g.dim() - lengths.dim())).expand_as(g)
