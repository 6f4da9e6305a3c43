"""Linear systems that say so where a network gives them nothing to solve for."""

from __future__ import annotations

import torch
from torch import Tensor

from .protocol import NotApplicable


def solved(matrix: Tensor, right: Tensor) -> Tensor:
    """The x with matrix · x = right; not applicable where the matrix is singular, as for models that do not differ."""
    try:
        found: Tensor = torch.linalg.solve(matrix, right)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NotApplicable("the difference of the two models leaves the scales of channels undetermined") from error
    if not bool(found.isfinite().all()):
        raise NotApplicable("the difference of the two models gives channels no finite scales")
    return found


def solved_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """`solved` for a symmetric positive definite matrix, a third of the work; one that rounding has left indefinite is
    solved as any other.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    found = torch.cholesky_solve(right[:, None], factor)[:, 0]
    # One read for both.
    return found if bool(found.isfinite().all() & (failed == 0)) else solved(matrix, right)
