"""The inputs of every linear layer on the attacker's probe points: directions and energies.

A layer computes W p + b, so the gradient of [W b] is a combination of inputs [p; 1] and lies where inputs have energy;
a null-space move lies where they have least.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import DataError
from ...linalg.subspace import SecondMoment, rank_for
from ...symmetry.layer_inputs import LinearWeight, linear_weights, observe
from .protocol import Held, NotApplicable, Weights

# Products that a layer's second moment may take. Beyond that a layer is known by a sample of its inputs, but of no
# fewer than half its dimensions.
_PRODUCTS = 2**35
_BATCH = 64


@dataclass(frozen=True, eq=False)
class InputSpectrum:
    """Of one weight, and the bias that goes with it: for each group of the layer the eigenvectors of its inputs in the
    columns of (d, k), leading ones first, and the energy of the inputs along each, (k,). Where there is a bias, the
    constant input 1 is the last of the d coordinates.
    """

    weight: str
    bias: str | None
    vectors: tuple[Tensor, ...]
    energies: tuple[Tensor, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters it is about."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def ranks(self, energy: float) -> tuple[int, ...]:
        """For each group the fewest directions that hold so much of the inputs' energy; 1 means the numerical rank."""
        return tuple(int(rank_for(values, energy)) for values in self.energies)

    def rows(self, values: Weights, *, points: int | None = None) -> Tensor:
        """[W b] as rows (groups, rows, d); with `points` of a stack, (groups, points · rows, d)."""
        weight = values[self.weight]
        stacked = weight.reshape(points or 1, len(self.vectors), -1, self._d)
        if self.bias is not None:
            bias = values[self.bias].reshape(*stacked.shape[:3], 1)
            stacked = torch.cat([stacked, bias.to(stacked.dtype)], dim=3)
        return stacked.transpose(0, 1).flatten(1, 2)

    def parameters(self, rows: Tensor, like: Weights) -> dict[str, Tensor]:
        """The way back, for one [W b]."""
        if self.bias is None:
            return {self.weight: rows.reshape(like[self.weight].shape)}
        weight, bias = rows[..., :-1], rows[..., -1]
        return {
            self.weight: weight.reshape(like[self.weight].shape),
            self.bias: bias.reshape(like[self.bias].shape),
        }

    @property
    def _d(self) -> int:
        return len(self.vectors[0]) - (self.bias is not None)


def input_spectra(held: Held) -> list[InputSpectrum]:
    """The spectrum of every linear weight that the probes reach, in float64."""
    moments: dict[str, SecondMoment] = {}
    weights = {weight.name: weight for weight in linear_weights(held.model)}
    # Which patches are looked at is no secret of anybody's, and the same each time.
    generator = torch.Generator().manual_seed(0)
    batches = torch.split(held.x, _BATCH)

    def record(weight: LinearWeight, columns: Tensor) -> None:
        d, positions = columns.shape[1:]
        most = max(1, max(_PRODUCTS // d**2, d // 2) // len(batches))
        if positions > most:
            columns = columns[:, :, torch.randperm(positions, generator=generator)[:most].to(columns.device)]
        moments.setdefault(weight.name, SecondMoment(torch.float64)).add(columns)

    observe(held.model, batches, weights.values(), record)
    if not moments:
        kind = type(held.original).__name__
        raise NotApplicable(f"{kind} has no Linear or convolution layer that the probes reach")
    return [_spectrum(weights[name], moments.pop(name)) for name in list(moments)]


def _spectrum(weight: LinearWeight, moment: SecondMoment) -> InputSpectrum:
    if not bool(moment.energy.isfinite().all()):
        raise DataError(
            f"inputs of the layer of {weight.name} hold NaN or infinity; check the examples and the weights"
        )
    found = moment.leading(1.0)
    vectors = tuple(basis[:, :rank] for basis, rank in zip(found.basis, found.ranks, strict=True))
    energies = tuple(values[:rank] for values, rank in zip(found.energies, found.ranks, strict=True))
    return InputSpectrum(weight.name, weight.bias, vectors, energies)
