"""Whether an example was forgotten, by how its gradient differs between the original and the unlearned model.

Δ(x) = ∇ℓ(x; θᵤ) − ∇ℓ(x; θₒ), cross-entropy, both models in eval mode. A background of m examples that neither model was
trained on or made to forget gives the mean μ̂ and covariance Σ̂ of Δ over the coordinates where it varies most, and

    s(x) = (Δ(x) − μ̂)ᵀ(Σ̂ + λI)⁻¹(Δ(x) − μ̂)

says how unlike theirs the Δ of a candidate is. Candidates are ranked by s itself; whether the forgotten ones have
larger or smaller values is not known beforehand, so what is made of s must be two-sided.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...errors import InputError, WarpWarning
from ...gpu.precision import full_precision
from ...stats.exchange import conformal_p
from .background_fits import ChosenFit, fit_backgrounds, parts_of
from .gradient_rows import ComputedRows, DifferenceRows, FiniteCheck, HeldRows, Rows, held, spans
from .model_pair import are_identical, check_pair, gradient_copy
from .original_gradients import OriginalGradients, original_side
from .spare_memory import can_hold

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """What the test found about n candidates, in their order.

    `statistic` (n,) is s, the mean over repetitions; rank by it. `chi2_log_p` (n,) is log P(χ² > s) at as many degrees
    of freedom as coordinates were chosen, the mean over repetitions. It is not calibrated, since Σ̂ has a rank of at
    most m − 1, mostly far below the number of coordinates, and it saturates at 0 or −∞, so that ranking by it makes
    ties. `calibrated_p` (n,) is the conformal p-value (1 + #{s_cal ≥ s})/(n_cal + 1), valid where candidates that were
    not forgotten are drawn as the calibration examples are; a tie counts against the candidate. It is one-sided: small
    where s is large. `calibration_statistic` (n_cal,) is s of the calibration examples, for other p-values and
    quantile plots. The p-values of several candidates depend on each other through the calibration examples they share.
    `coordinates`, `background` and `ridge` are the number of coordinates chosen, the number of background examples and
    λ, of every repetition.
    """

    statistic: Floats
    chi2_log_p: Floats
    calibrated_p: Floats | None
    calibration_statistic: Floats | None
    coordinates: tuple[int, ...]
    background: tuple[int, ...]
    ridge: tuple[float, ...]


def gradient_difference(
    original: nn.Module | OriginalGradients,
    unlearned: nn.Module,
    *,
    candidates: object | None = None,
    background: object | None = None,
    calibration: object | None = None,
    keep: float = 0.1,
    ridge: float = 1e-3,
    relative_ridge: bool = False,
    repetitions: int = 1,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Scores:
    """Score `candidates` by how unlike Δ of the `background` their Δ is.

    Each set is a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`. Background and `calibration`
    must be non-members of both models, drawn as the candidates that were not forgotten are; the three must be disjoint,
    and exact copies are refused. Where many unlearned models have one original, give what `prepare_original` returns in
    its place, and no sets.

    `keep` is the share of coordinates taken, those that vary most over the background; one that does not vary is never
    taken. `ridge` is λ, or with `relative_ridge` λ in units of the mean variance of those coordinates: variances of
    gradients are often far below the default, and s is then close to ‖Δ − μ̂‖²/λ. With `repetitions` above 1 the
    background is cut by `generator` into as many disjoint parts, and s is the mean over them. Gradients are of the
    parameters that are trainable in the original, or of all where none is.

    Where Δ does not vary over the background in any coordinate, as for identical models, every statistic is 0, every
    p-value 1, and a `WarpWarning` says so.
    """
    check_fit(keep, ridge)
    _check_options(repetitions, batch_size)
    given = {"candidates": candidates, "background": background, "calibration": calibration, "batch_size": batch_size}
    if isinstance(original, OriginalGradients):
        twice = [name for name, value in given.items() if value is not None]
        if twice:
            raise InputError(f"{twice[0]} belongs to the prepared original; give it to `prepare_original` alone")
        side = original
    else:
        if candidates is None or background is None:
            raise InputError("candidates and background are needed; leave them out only with a prepared original")
        side = original_side(
            original, candidates=candidates, background=background, calibration=calibration, batch_size=batch_size
        )
    check_pair(side.model, unlearned)
    parts = parts_of(len(side.sets["background"]), repetitions=repetitions, generator=generator)
    model = gradient_copy(unlearned, side.names, what="unlearned")
    if are_identical(side.model, model):
        return _no_difference(side, parts, ridge)
    with full_precision():
        fitted = FittedDifference(side, model, parts, keep=keep, ridge=ridge, relative_ridge=relative_ridge)
        found = {what: _statistics(side, fitted, what) for what in side.sets if what != "background"}
    if not any(chosen.fit.coordinates for chosen in fitted.fits):
        return _no_difference(side, parts, ridge)
    return _scores(found, fitted.fits)


class FittedDifference:
    """Δ of one unlearned model, fitted to the background, to score rows of other sets with.

    `model` is a copy that gradients can be taken at (`gradient_copy`) and differs from the original; `parts` are the
    parts of the background, one for each repetition.
    """

    def __init__(
        self,
        side: OriginalGradients,
        model: nn.Module,
        parts: Sequence[Tensor],
        *,
        keep: float,
        ridge: float,
        relative_ridge: bool,
    ) -> None:
        self._finite = FiniteCheck()
        self._rows = {what: ComputedRows(model, x, what, "unlearned", self._finite) for what, x in side.sets.items()}
        rows = _held_if_room(DifferenceRows(self._rows["background"], side.rows["background"]), side)
        self._finite.require()
        self.fits = fit_backgrounds(
            rows, parts, keep=keep, ridge=ridge, relative=relative_ridge, batch_size=side.rows_at_once()
        )
        self._finite.require()

    def statistic(self, what: str, begin: int, end: int, original: Tensor) -> Tensor:
        """The s of rows `begin` to `end` − 1 of a set under every fit, (repetitions, end − begin), on their device,
        given their gradients at the original.
        """
        rows = self._rows[what].part_less(begin, end, original)
        return torch.stack([chosen.statistic(rows) for chosen in self.fits])

    def require_finite(self) -> None:
        """Refuse what was scored so far where a gradient was not finite."""
        self._finite.require()


def check_fit(keep: float, ridge: float) -> None:
    """Refuse a share of coordinates or a λ that is none."""
    if not 0 < keep <= 1:
        raise InputError(f"keep is {keep}; it is a share of the coordinates, above 0 and at most 1")
    if not 0 < ridge < float("inf"):
        raise InputError(f"ridge is {ridge}; it must be above 0 and finite, such as 1e-3")


def _check_options(repetitions: int, batch_size: int | None) -> None:
    if repetitions < 1:
        raise InputError(f"repetitions is {repetitions}; it must be at least 1")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1")


def _held_if_room(rows: DifferenceRows, side: OriginalGradients) -> Rows:
    """The background's Δ is read twice."""
    already = sum(len(r) for r in side.rows.values() if isinstance(r, HeldRows)) * side.row_bytes
    if can_hold(len(rows) * side.row_bytes, side.device, already=already):
        return held(rows, batch_size=side.rows_at_once())
    return rows


def _statistics(side: OriginalGradients, fitted: FittedDifference, what: str) -> Floats:
    """The s of every row of a set under every fit, shape (repetitions, n)."""
    parts = [
        fitted.statistic(what, begin, end, side.rows[what].part(begin, end))
        for begin, end in spans(len(side.sets[what]), side.rows_at_once())
    ]
    fitted.require_finite()
    return np.asarray(torch.cat(parts, 1).cpu().numpy(), dtype=np.float64)


def _scores(found: dict[str, Floats], fits: Sequence[ChosenFit]) -> Scores:
    # Takes a second to import.
    from scipy.stats import chi2

    each = found["candidates"]
    log_p = [
        chi2.logsf(s, chosen.fit.coordinates) if chosen.fit.coordinates else np.zeros_like(s)
        for s, chosen in zip(each, fits, strict=True)
    ]
    statistic = each.mean(0)
    reference = found["calibration"].mean(0) if "calibration" in found else None
    return Scores(
        statistic=statistic,
        chi2_log_p=np.mean(log_p, axis=0),
        calibrated_p=None if reference is None else conformal_p(statistic, reference),
        calibration_statistic=reference,
        coordinates=tuple(chosen.fit.coordinates for chosen in fits),
        background=tuple(chosen.fit.size for chosen in fits),
        ridge=tuple(chosen.fit.ridge for chosen in fits),
    )


def _no_difference(side: OriginalGradients, parts: Sequence[Tensor], ridge: float) -> Scores:
    warnings.warn(
        "the gradients of the background differ between the two models in no coordinate, or by the same in all "
        "examples; every statistic is 0 and no candidate can be told from another",
        WarpWarning,
        stacklevel=3,
    )
    reference = side.sets.get("calibration")
    count = len(side.sets["candidates"])
    return Scores(
        statistic=np.zeros(count),
        chi2_log_p=np.zeros(count),
        calibrated_p=None if reference is None else np.ones(count),
        calibration_statistic=None if reference is None else np.zeros(len(reference)),
        coordinates=(0,) * len(parts),
        background=tuple(len(part) for part in parts),
        ridge=(ridge,) * len(parts),
    )
