"""Weights brought to a form that no rescaling of channels changes.

Channels with factors τ turn a weight W into τ_out W τ_in⁻¹. The energies E_ij = ‖W_ij‖² of its kernels then change to
r_i E_ij c_j, and there is one matrix of that form, up to a number, whose rows have equal sums and whose columns have
equal sums (matrices without zeros; Sinkhorn). The weight with these energies is the same whatever τ was, and follows a
permutation of channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 50
_CLOSE = 1e-6


def balanced(weight: Tensor, *, blocks: int = 1) -> Tensor:
    """The weight (out, in, *taps) with kernels rescaled so that Σ_j ‖W_ij‖² = 1 for every row and Σ_i ‖W_ij‖² is the
    same for every column; each of `blocks` blocks of rows by itself. Rows and columns of zeros stay.
    """
    energies = weight.square().flatten(2).sum(2) if weight.dim() > 2 else weight.square()
    energies = energies.reshape(blocks, -1, energies.shape[1])
    rows, columns = torch.ones_like(energies[:, :, 0]), torch.ones_like(energies[:, 0])
    share = energies.shape[1] / energies.shape[2]
    for _ in range(_ROUNDS):
        before = rows
        rows = _inverse((energies @ columns.unsqueeze(2)).squeeze(2))
        columns = share * _inverse((rows.unsqueeze(1) @ energies).squeeze(1))
        if bool(((rows - before).abs() <= _CLOSE * rows).all()):
            break
    rows = _inverse((energies @ columns.unsqueeze(2)).squeeze(2))
    factors = (rows.unsqueeze(2) * columns.unsqueeze(1)).sqrt().reshape(weight.shape[:2])
    return weight * factors.reshape(*factors.shape, *[1] * (weight.dim() - 2))


def _inverse(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, 1 / sums.clamp(min=1e-300), 0.0)
