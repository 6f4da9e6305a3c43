"""Closed-form recovery of the one example that was deleted from a linear or ridge regression.

Both models minimise Σ (yᵢ − xᵢᵀβ)² + βᵀPβ with the same penalty P (λI for ridge, with 0 at the intercept where that is
not penalised, 0 for least squares), over all examples (β⁺) and over all but (x, y) (β⁻). With C⁺ = XᵀX + P over all
examples and C⁻ = C⁺ − xxᵀ, the normal equations C⁻β⁻ = C⁺β⁺ − xy give, for δ = β⁺ − β⁻,

    C⁺δ = r⁻ x,  r⁻ = y − xᵀβ⁻        and        C⁻δ = r⁺ x,  r⁺ = y − xᵀβ⁺ = r⁻ (1 − xᵀ(C⁺)⁻¹x),

the first being δ = r⁺ / (1 − xᵀ(C⁺)⁻¹x) · (C⁺)⁻¹x. So C with the deleted example goes with the residual under the model
after, and C without it with the residual under the model before. Either way Cδ points along x, and its sign and length
hang on the residual r. They follow

- from one coordinate of x that is known and not 0, such as the constant 1 of an intercept: r = (Cδ)ⱼ / xⱼ, and then
  the label too, y = r + xᵀβ;
- from the label: with x = Cδ / r the residual obeys r² − y r + (Cδ)ᵀβ = 0, which has two roots. The wrong one is
  ruled out where it would give x a leverage xᵀ(C⁺)⁻¹x of 1 or more; else both explain the two models equally well.

With k outputs (one-hot labels, several targets) the update has rank one, CΔ = x rᵀ, and with x = a u, u the left
singular vector and w = (CΔ)ᵀu, the label gives k equations w − a y + a² Bᵀu = 0 for the one unknown a: in general one
solution for k ≥ 2.

A loss that is a mean over examples changes the penalty of the sum from nP to (n − 1)P: there C⁺δ + Pβ⁻ = r⁻ x, and
what is here is exact only for P = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError
from ...stats.roc import Floats

# Solutions for the scale whose relative misfits differ by less explain the label equally well.
_SAME_MISFIT = 1e-9


@dataclass(frozen=True, eq=False)
class DeletedDirection:
    """The deleted x up to sign and length: CΔ ≈ u wᵀ, in float64.

    `unit` is u, (p,), of length 1 with its largest entry positive; `residuals` is w, (k,): with x = a u the residuals
    are w / a under the model `coefficients`, (p, k). `unit_leverage` is uᵀC⁻¹u; `includes_deleted` says which C was
    given. `rank_one_share` is the share of ‖CΔ‖² that u wᵀ holds: 1 for one output, below 1 with more of them where C
    is an estimate or several examples were deleted.
    """

    unit: Tensor
    residuals: Tensor
    coefficients: Tensor
    unit_leverage: float
    includes_deleted: bool
    rank_one_share: float


@dataclass(frozen=True, eq=False)
class RecoveredExample:
    """The deleted example, `x` (p,) and `label` (k,), k = 1 for one output.

    `leverage` is xᵀC⁻¹x. `misfit` is ‖w − a y + a² Bᵀu‖ / ‖w‖: how badly x and the label explain the two models
    together; 0 where the label was worked out rather than given.
    """

    x: Tensor
    label: Tensor
    leverage: float
    misfit: float


@dataclass(frozen=True, eq=False)
class MaxDiff:
    """The public row whose prediction changed most; `changes`, (n,), has the length of every row's change."""

    index: int
    x: Tensor
    changes: Tensor


def gram(rows: Tensor, *, penalty: float | Tensor, count: int | None = None) -> Tensor:
    """C = XᵀX + P from rows (m, p), in float64: exact from all rows that a model was fitted to.

    From public rows give `count`, the number of examples in the fit: C = (count / m) Σ xxᵀ + P is then an estimate.
    `penalty` is λ, or the diagonal of P, (p,).
    """
    x = _matrix(rows, what="the rows")
    diagonal = torch.as_tensor(penalty, dtype=torch.float64, device=x.device)
    if diagonal.shape not in ((), x.shape[1:]) or not bool(((diagonal >= 0) & diagonal.isfinite()).all()):
        raise InputError(f"the penalty is {penalty}; give a number of at least 0, or {x.shape[1]} of them")
    if count is not None and count < 1:
        raise InputError(f"the model was fitted to {count} examples; give at least 1")
    scale = 1.0 if count is None else count / len(x)
    return scale * x.mT @ x + torch.diag(diagonal.expand(x.shape[1]))


def deleted_direction(
    before: Tensor, after: Tensor, gram: Tensor, *, includes_deleted: bool = True
) -> DeletedDirection:
    """The direction of the example that `before` was fitted to and `after` was not.

    The coefficients are (p,) or (p, k); `gram` is C, (p, p), with the deleted example or, where `includes_deleted` is
    False, without it. Of an estimate from public data either will do.
    """
    one, other = _coefficients(before, after)
    c = _gram(gram, len(one)).to(one.device)
    change = one - other
    left, values, right = torch.linalg.svd(c @ change, full_matrices=False)
    if not values[0] > 0:
        raise InputError("the matrix C maps the change of the coefficients to 0; give C = XᵀX + P of the model")
    unit, residuals = left[:, 0], values[0] * right[0]
    if unit[unit.abs().argmax()] < 0:
        unit, residuals = -unit, -residuals
    return DeletedDirection(
        unit=unit,
        residuals=residuals,
        coefficients=other if includes_deleted else one,
        # C⁻¹u = Δw / ‖w‖² by the singular value decomposition, without another solve.
        unit_leverage=float(unit @ change @ residuals / residuals.square().sum()),
        includes_deleted=includes_deleted,
        rank_one_share=float(values[0].square() / values.square().sum()),
    )


def with_known_coordinate(direction: DeletedDirection, *, coordinate: int, value: float = 1.0) -> RecoveredExample:
    """The example whose x has `value` at `coordinate`, 1 for the column of an intercept; its label comes out too."""
    size = len(direction.unit)
    if not -size <= coordinate < size:
        raise InputError(f"coordinate {coordinate} of {size}; give one of 0 to {size - 1}")
    if not (np.isfinite(value) and value):
        raise InputError(f"the known coordinate is {value}; only one that is not 0 tells the length of x")
    share = float(direction.unit[coordinate])
    if abs(share) < torch.finfo(torch.float64).eps:
        raise InputError(
            f"the direction found is 0 at coordinate {coordinate}, where x is {value}; name a known coordinate"
        )
    scale = value / share
    x = scale * direction.unit
    label = direction.residuals / scale + direction.coefficients.mT @ x
    return RecoveredExample(x, label, scale**2 * direction.unit_leverage, 0.0)


def with_known_label(direction: DeletedDirection, label: float | Tensor) -> tuple[RecoveredExample, ...]:
    """Every example of that label which explains the two models: as a rule two for one output, one for more.

    Those of leverage 1 or more are left out where C includes the example and another is left; smaller leverages come
    first, which is an order and no preference. Where none fits exactly, as with an estimated C, the nearest is given,
    and its misfit says how near.
    """
    unit, w = direction.unit, direction.residuals
    y = torch.as_tensor(label, dtype=torch.float64, device=w.device).reshape(-1)
    if y.shape != w.shape or not y.isfinite().all():
        raise InputError(f"the label is {label}; give {len(w)} finite numbers, one for each output of the model")
    b = direction.coefficients.mT @ unit
    scales = _scales(*(v.cpu().numpy() for v in (w, y, b)))
    if not scales:
        raise InputError("the label is 0 and the model predicts 0 along x; its length cannot be told")
    found = [RecoveredExample(a * unit, y, a**2 * direction.unit_leverage, misfit) for a, misfit in scales]
    if direction.includes_deleted:
        found = [e for e in found if e.leverage < 1] or found
    return tuple(sorted(found, key=lambda e: e.leverage))


def max_diff(before: Tensor, after: Tensor, public: Tensor) -> MaxDiff:
    """The baseline that inverts nothing: the public row, of (n, p), with the largest ‖xᵀ(β⁺ − β⁻)‖."""
    one, other = _coefficients(before, after)
    rows = _matrix(public, what="the public rows").to(one.device)
    if rows.shape[1] != len(one):
        raise InputError(f"the public rows have {rows.shape[1]} columns and the model {len(one)} coefficients")
    changes = torch.linalg.vector_norm(rows @ (one - other), dim=1)
    index = int(changes.argmax())
    return MaxDiff(index, public[index], changes)


def _scales(w: Floats, y: Floats, b: Floats) -> list[tuple[float, float]]:
    """The a that make ‖w − a y + a² b‖ least, with that length over ‖w‖: all that reach the same least value."""

    def misfit(a: float) -> float:
        return float(np.linalg.norm(w - a * y + a * a * b) / np.linalg.norm(w))

    slope = np.array([2 * b @ b, -3 * y @ b, y @ y + 2 * w @ b, -w @ y])
    curvature = np.polyder(slope)
    roots = np.roots(slope)
    # A minimum that two roots share comes back as a pair with a small imaginary part.
    real = {float(z.real) for z in roots if abs(z.imag) <= 1e-4 * abs(z) and z.real != 0}
    least = {_polished(a, w, y, b) for a in real if np.polyval(curvature, a) >= 0}
    found = sorted((misfit(a), a) for a in least)
    return [(a, m) for m, a in found if m <= found[0][0] + _SAME_MISFIT]


def _polished(a: float, w: Floats, y: Floats, b: Floats) -> float:
    """Two steps of Gauss and Newton, each kept only where it helps: the slope's coefficients are squares, which have
    half of the digits.
    """
    for _ in range(2):
        rest, tangent = w - a * y + a * a * b, 2 * a * b - y
        if not tangent @ tangent > 0:
            break
        step = a - float(rest @ tangent / (tangent @ tangent))
        if np.linalg.norm(w - step * y + step * step * b) >= np.linalg.norm(rest):
            break
        a = step
    return a


def _coefficients(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    if before.shape != after.shape or before.dim() not in (1, 2) or not before.numel():
        raise InputError(
            f"the coefficients have shapes {tuple(before.shape)} and {tuple(after.shape)}; "
            "give two of one shape, (p,) or (p, outputs)"
        )
    for beta, what in ((before, "before"), (after, "after")):
        if not beta.is_floating_point() or not beta.isfinite().all():
            raise InputError(f"the coefficients {what} the deletion are not finite floating-point numbers; fit again")
    one, other = (beta.detach().double().reshape(len(beta), -1) for beta in (before, after.to(before.device)))
    # The type that is coarser says what a difference of rounding is.
    digits = max(torch.finfo(beta.dtype).eps for beta in (before, after))
    if (one - other).norm() <= 2 * digits * torch.maximum(one.norm(), other.norm()):
        raise InputError("the coefficients before and after are the same; there is nothing to recover")
    return one, other


def _gram(gram: Tensor, size: int) -> Tensor:
    c = _matrix(gram, what="the matrix C")
    if c.shape != (size, size):
        raise InputError(
            f"the matrix C has shape {tuple(c.shape)} and should be {(size, size)}, as the coefficients are"
        )
    if (c - c.mT).abs().max() > 1e-6 * c.abs().max():
        raise InputError("the matrix C is not symmetric; give XᵀX + P")
    return c


def _matrix(values: Tensor, *, what: str) -> Tensor:
    if values.dim() != 2 or not values.numel():
        raise InputError(f"the shape of {what} is {tuple(values.shape)}; give a matrix with at least one entry")
    if not values.is_floating_point() or not values.isfinite().all():
        raise InputError(f"not every entry of {what} is a finite floating-point number; leave out those that are not")
    return values.detach().double()
