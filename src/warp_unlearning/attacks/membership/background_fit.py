"""How far a row lies from a background of rows, s = vᵀ(Σ̂ + λI)⁻¹v with v = Δ − μ̂, without any d×d matrix.

μ̂ and Σ̂ = XᵀX/(m − 1) are the mean and covariance of m background rows, X (m, d) those rows less μ̂. Everything about s
that depends on the background is in the m×m matrix G = XXᵀ: with z = Xv,

    s = [‖v‖² − zᵀ(G + λ(m − 1)I)⁻¹z]/λ.

G and z are products in float64 of rows in whatever type gradients have. The subtraction costs as many digits as the
largest variance of a direction exceeds λ by, which is what solving with the d×d matrix costs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import InputError

# Products in float64 take so many numbers at a time: a float64 copy of all columns would triple the memory. A GPU needs
# large products to be busy.
_COPIED = 2**25
_COPIED_ELSEWHERE = 2**28
# A ridge below this share of the trace is near the rounding of G, whose eigenvalues must be told from 0.
_RESOLVED = 1e-11


class BackgroundFit:
    """The mean, the covariance and the ridge λ of background rows over chosen coordinates.

    `rows` are the background rows less `about`, in the type the gradients have, shape (m, d); `about` is close to their
    mean, and what it misses of it is taken off in closed form, so that rounding it costs nothing. With `relative`, λ is
    `ridge` · tr Σ̂/d, else `ridge` itself.
    """

    def __init__(self, rows: Tensor, about: Tensor, *, ridge: float, relative: bool) -> None:
        self.size, self.coordinates = rows.shape
        if self.size < 2:
            raise InputError(f"a background of {self.size} rows has no covariance; give at least 2 examples")
        self._rows, self._about = rows, about
        products = exact_products(rows, rows)
        self._missed = products.mean(1)  # Y·ȳ, for rows Y about `about`, whose mean is ȳ
        self._missed_square = self._missed.mean()
        gram = products - self._missed[:, None] - self._missed[None, :] + self._missed_square
        gram = (gram + gram.T) / 2
        trace = float(gram.diagonal().sum().clamp(min=0))
        spread = trace / (self.size - 1)
        self.ridge = ridge * spread / self.coordinates if relative and self.coordinates else ridge
        self._explained = _explained_by(gram, self.ridge * (self.size - 1), trace)

    def statistic(self, rows: Tensor) -> Tensor:
        """The s of each row, shape (k,), float64, for rows (k, d) over the chosen coordinates; 0 if there are none."""
        if self.coordinates == 0:
            return torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        apart = rows - self._about
        cross = exact_products(self._rows, apart)
        square = exact_squares(apart) - 2 * cross.mean(0) + self._missed_square
        z = cross - self._missed[:, None]
        return (square - self._explained(z - z.mean(0))).clamp(min=0) / self.ridge


def _explained_by(gram: Tensor, ridge: float, trace: float) -> Callable[[Tensor], Tensor]:
    """What takes columns z (m, k) to zᵀ(G + ridge · I)⁻¹z, by a Cholesky factor, many times as fast as eigenvalues."""
    if ridge > _RESOLVED * trace:
        ridged = gram.clone()
        ridged.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(ridged)
        if not bool(failed):
            return lambda z: torch.linalg.solve_triangular(factor, z, upper=False).square().sum(0)
    values, vectors = torch.linalg.eigh(gram)
    # The rank is at most m − 1: the smallest eigenvalues are rounding, and may come out below 0.
    sizes = values.clamp(min=0) + ridge
    return lambda z: ((vectors.T @ z).square() / sizes[:, None]).sum(0)


def exact_products(a: Tensor, b: Tensor) -> Tensor:
    """A Bᵀ in float64, shape (p, q), of rows (p, d) and (q, d), whatever their type."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    step = max(1, _copied(a) // (len(a) + len(b)))
    for some_a, some_b in zip(torch.split(a, step, 1), torch.split(b, step, 1), strict=True):
        total.addmm_(some_a.double(), some_b.double().T)
    return total


def exact_squares(rows: Tensor) -> Tensor:
    """‖row‖² in float64, shape (p,)."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for some in torch.split(rows, max(1, _copied(rows) // len(rows)), 1):
        total += some.double().square().sum(1)
    return total


def _copied(rows: Tensor) -> int:
    return _COPIED if rows.device.type == "cpu" else _COPIED_ELSEWHERE
