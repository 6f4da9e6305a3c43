"""How much of a second moment C (d, d) a subspace holds, by products with C or by random probes."""

from __future__ import annotations

import torch
from torch import Tensor

# From this many columns on, a product with all of them costs more than it tells.
_MANY = 512
_PROBES = 32


def captured_energy(second_moment: Tensor, basis: Tensor) -> float:
    """tr(Bᵀ C B) / tr(C), the share of the energy inside the span of an orthonormal basis."""
    total = second_moment.diagonal().sum()
    if total <= 0:
        return 0.0
    return float((basis * (second_moment @ basis)).sum() / total)


def missed_by(second_moment: Tensor, basis: Tensor) -> float:
    """tr((I − P) C (I − P)), P = B Bᵀ: the energy outside of the span of an orthonormal `basis` (d, k).

    For many columns, the mean of zᵀ (I − P) C (I − P) z over random z, which needs C at those only.
    """
    if basis.shape[1] < _MANY:
        return float(second_moment.diagonal().sum() - (basis * (second_moment @ basis)).sum())
    z = _probes(len(basis), basis)
    return _mean_form(second_moment, z - basis @ (basis.mT @ z))


def held_by(second_moment: Tensor, normals: Tensor) -> float:
    """tr(Zᵀ C Z), the energy in the span of orthonormal `normals` (d, m); for many columns, estimated as above."""
    if normals.shape[1] < _MANY:
        return float((normals * (second_moment @ normals)).sum())
    return _mean_form(second_moment, normals @ _probes(normals.shape[1], normals))


def _probes(length: int, like: Tensor) -> Tensor:
    draw = torch.Generator(like.device).manual_seed(0)
    return torch.randn(length, _PROBES, generator=draw, dtype=like.dtype, device=like.device)


def _mean_form(second_moment: Tensor, vectors: Tensor) -> float:
    return float((vectors * (second_moment @ vectors)).sum()) / vectors.shape[1]
