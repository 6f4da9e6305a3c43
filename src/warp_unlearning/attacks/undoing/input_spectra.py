"""The inputs of every linear layer on the attacker's probe points: directions and energies.

A layer computes W p + b, so the gradient of [W b] is a combination of inputs [p; 1] and lies where inputs have energy;
a null-space move lies where they have least.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...linalg.gram import add_gram, gram, mirrored
from ...linalg.subspace import rank_for
from ...symmetry.input_bases import input_rows, require_finite
from ...symmetry.layer_inputs import observe_inputs
from ...symmetry.linear_weights import LinearWeight
from ...symmetry.sampled_inputs import sampled_rows
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
        return tuple(rank_for(values, energy) for values in self.energies)

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
    seen: dict[str, _Rows] = {}
    # Which patches are looked at is no secret of anybody's, and the same each time.
    generator = torch.Generator().manual_seed(0)

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        rows = seen.setdefault(weight.name, _Rows(weight))
        places = max(1, max(_PRODUCTS // rows.d**2, rows.d // 2) // len(held.x))
        rows.add(input_rows(weight, sampled_rows(layer, x, places, generator=generator)))

    observe_inputs(held.model, torch.split(held.x, _BATCH), record)
    if not seen:
        kind = type(held.original).__name__
        raise NotApplicable(f"{kind} has no Linear, Conv1d or Conv2d layer that the probes reach")
    return [seen.pop(name).spectrum() for name in list(seen)]


class _Rows:
    """Inputs of one weight: the rows themselves while there are fewer than dimensions, then their second moment."""

    def __init__(self, weight: LinearWeight) -> None:
        self.weight = weight
        self.d = weight.d + (weight.bias is not None)
        self._kept: list[Tensor] = []
        self._moment: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Take in rows of shape (groups, n, d)."""
        rows = rows.double()
        if self._moment is None:
            self._kept.append(rows)
            if sum(part.shape[1] for part in self._kept) < self.d:
                return
            self._moment = rows.new_zeros(len(rows), self.d, self.d)
            rows, self._kept = torch.cat(self._kept, dim=1), []
        add_gram(self._moment, rows)

    def spectrum(self) -> InputSpectrum:
        """The eigenvectors and eigenvalues of every group."""
        if self._moment is None:
            found = [_of_rows(rows) for rows in torch.cat(self._kept, dim=1)]
        else:
            found = [_of_moment(moment) for moment in mirrored(self._moment)]
        for _, energies in found:
            require_finite(self.weight.name, energies)
        return InputSpectrum(self.weight.name, self.weight.bias, tuple(v for v, _ in found), tuple(e for _, e in found))


def _of_moment(moment: Tensor) -> tuple[Tensor, Tensor]:
    # An eigensolver may fail to converge on thousands of coordinates that no input reaches.
    alive = moment.diagonal() != 0
    values, vectors = _descending(moment[alive][:, alive])
    whole = moment.new_zeros(len(moment), len(values))
    whole[alive] = vectors
    return whole, values


def _of_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """With rows = U S Vᵀ, rows rowsᵀ has eigenvectors U, and V = rowsᵀ U S⁻¹."""
    values, left = _descending(gram(rows.mT))
    rank = rank_for(values, 1.0)
    # Images of the trailing eigenvectors are not orthogonal to rounding; the order of the leading ones is kept.
    vectors: Tensor = torch.linalg.qr(rows.mT @ left[:, :rank]).Q
    return vectors, values[:rank]


def _descending(matrix: Tensor) -> tuple[Tensor, Tensor]:
    if not bool(matrix.isfinite().all()):
        return matrix.new_full((len(matrix),), torch.nan), matrix
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0).clamp(min=0), vectors.flip(1)
