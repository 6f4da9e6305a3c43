"""How much of a second moment C (d, d) a subspace holds, by products with C or by random probes."""

from __future__ import annotations

from torch import Tensor

from .orthonormal import KEPT_COLUMNS, fixed_normal

# From this many columns on, a product with all of them costs more than it tells.
_MANY = 512
# Graphs read them where they lie.
_PROBES = KEPT_COLUMNS


def captured_energy(second_moment: Tensor, basis: Tensor) -> float:
    """tr(Bᵀ C B) / tr(C), the share of the energy inside the span of an orthonormal basis."""
    total = second_moment.diagonal().sum()
    if total <= 0:
        return 0.0
    return float((basis * (second_moment @ basis)).sum() / total)


def missed_by(second_moment: Tensor, basis: Tensor) -> float:
    """`missed_energy`, read."""
    return float(missed_energy(second_moment, basis))


def held_by(second_moment: Tensor, normals: Tensor) -> float:
    """`held_energy`, read."""
    return float(held_energy(second_moment, normals))


def missed_energy(second_moment: Tensor, basis: Tensor) -> Tensor:
    """tr((I − P) C (I − P)), P = B Bᵀ: the energy outside of the span of an orthonormal `basis` (d, k).

    For many columns, the mean of zᵀ (I − P) C (I − P) z over random z, which needs C at those only.
    """
    if basis.shape[1] < _MANY:
        return second_moment.diagonal().sum() - (basis * (second_moment @ basis)).sum()
    z = _probes(basis)
    return _mean_form(second_moment, z - basis @ (basis.mT @ z))


def held_energy(second_moment: Tensor, normals: Tensor) -> Tensor:
    """tr(Zᵀ C Z), the energy in the span of orthonormal `normals` (d, m); for many columns, estimated as above."""
    if normals.shape[1] < _MANY:
        return (normals * (second_moment @ normals)).sum()
    return _mean_form(second_moment, normals @ _probes(normals)[: normals.shape[1]])


def _probes(columns: Tensor) -> Tensor:
    """By the length of the columns: how many there are is decided by data."""
    return fixed_normal(len(columns), _PROBES, columns.dtype, columns.device)


def _mean_form(second_moment: Tensor, vectors: Tensor) -> Tensor:
    return (vectors * (second_moment @ vectors)).sum() / vectors.shape[1]
