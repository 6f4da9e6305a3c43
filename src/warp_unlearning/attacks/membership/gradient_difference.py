"""Whether an example was forgotten, by how its gradient differs between the original and the new model.

Δ(x) = ∇ℓ(x; θᵤ) − ∇ℓ(x; θₒ), cross-entropy, both models in eval mode. A background of m examples that neither model was
trained on or made to forget gives the mean μ̂ and covariance Σ̂ of Δ over the coordinates where it varies most, and

    s(x) = (Δ(x) − μ̂)ᵀ(Σ̂ + λI)⁻¹(Δ(x) − μ̂)

says how unlike theirs the Δ of a candidate is. Whether forgotten candidates have larger or smaller values is not known
beforehand, so what is made of s must be two-sided. The paper's Algorithm GGD sums −log P(χ²_d > s) over T fresh
backgrounds; it ranks as s does for one, and is here the score "log p".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ...data.examples import TensorExamples, as_examples, as_tensors
from ...errors import DataError, InputError, WarpWarning, nearest
from ...gpu.precision import full_precision
from ...models.own import check_examples
from ...stats.exchange import conformal_p
from ...stats.verdict import Needs
from ...unlearning.checks import copies_of
from .background import BackgroundFit, fit_backgrounds, parts_of
from .base import Batch, Pair, are_identical, check_pair, compared_parameters, device_of, gradient_copy
from .gradient_rows import GradientRows, gradient_rows, spans

Floats = NDArray[np.float64]
By = Literal["distance", "log p"]


@dataclass(frozen=True, eq=False)
class Scores:
    """What the test found about n candidates, in their order.

    `statistic` (n,) is s, the mean over repetitions. `evidence` (n,) is Algorithm GGD's score, −log P(χ² > s) at as
    many degrees of freedom as coordinates were chosen, summed over repetitions. Its p-values are not calibrated, since
    Σ̂ has a rank of at most m − 1, mostly far below the number of coordinates. `calibrated_p` (n,) is the conformal
    p-value (1 + #{s_cal ≥ s})/(n_cal + 1), valid where candidates that were not forgotten are drawn as the calibration
    examples are; it is small where s is large. `calibration_statistic` (n_cal,) is s of the calibration examples.
    `coordinates`, `background` and `ridge` are the number of coordinates chosen, the number of background examples and
    λ, of every repetition.
    """

    statistic: Floats
    evidence: Floats
    calibrated_p: Floats | None
    calibration_statistic: Floats | None
    coordinates: tuple[int, ...]
    background: tuple[int, ...]
    ridge: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class GradientDifference:
    """s of an example, the mean over `repetitions`; with `by` "log p", the sum of −log p as in Algorithm GGD.

    `keep` is the share of coordinates taken, those that vary most over the background; `ridge` is λ, or with `relative`
    λ in units of their mean variance. The background is cut by `generator` into `repetitions` disjoint parts.
    """

    needs: ClassVar[Needs] = "both weights"
    keep: float = 0.1
    ridge: float = 1e-3
    relative: bool = True
    repetitions: int = 1
    by: By = "distance"
    generator: torch.Generator | None = None
    batch_size: int | None = None
    name: str = "gradient difference"
    _parts: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise InputError(f"the gradient difference scores by {self.by!r}; {nearest(str(self.by), get_args(By))}")
        if not 0 < self.keep <= 1:
            raise InputError(f"keep is {self.keep}; it is a share of the coordinates, above 0 and at most 1")
        if not 0 < self.ridge < float("inf"):
            raise InputError(f"ridge is {self.ridge}; it must be above 0 and finite, such as 1e-3")
        for what, number in (("repetitions", self.repetitions), ("batch_size", self.batch_size)):
            if number is not None and number < 1:
                raise InputError(f"{what} is {number}; it must be at least 1")

    def fit(self, pairs: Sequence[Pair]) -> None:
        """Fit every pair to its background, whose gradients at the original are computed once."""
        if pairs:
            before = self._before(pairs[0])
            if len(pairs) > 1:
                before.hold()
            for pair in pairs:
                self._fits(pair, before)

    def fit_bytes(self, count: int, row_bytes: int) -> int:
        """The chosen columns of the background, twice."""
        return 2 * round(self.keep * count * row_bytes)

    def distances(self, pair: Pair, batch: Batch) -> tuple[list[BackgroundFit], Tensor]:
        """The fits, none where the models are identical, and s under each, (fits, k), float64."""
        fits = self._fits(pair, None)
        if not fits:
            return [], torch.zeros(0, len(batch.y), dtype=torch.float64)
        rows = gradient_rows(pair.new, batch.x, batch.y, less=batch.rows)
        return fits, torch.stack([fit.distance(rows) for fit in fits])

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """How unlike that of the background the Δ of an example is; 0 for identical models."""
        fits, found = self.distances(pair, batch)
        if not fits:
            return torch.zeros(len(batch.y), dtype=torch.float64)
        return found.mean(0) if self.by == "distance" else torch.from_numpy(_evidence(found.cpu().numpy(), fits))

    def _before(self, pair: Pair) -> GradientRows:
        what = "the background at the original model"
        return GradientRows(pair.original, pair.background, what=what, batch_size=self.batch_size)

    def _fits(self, pair: Pair, before: GradientRows | None) -> list[BackgroundFit]:
        return pair.once(self, lambda: self._fitted(pair, before or self._before(pair)))

    def _fitted(self, pair: Pair, before: GradientRows) -> list[BackgroundFit]:
        if are_identical(pair.original, pair.new):
            return []
        if not self._parts:
            self._parts.extend(parts_of(len(pair.background), repetitions=self.repetitions, generator=self.generator))
        what = "the background at the unlearned model"
        rows = GradientRows(pair.new, pair.background, what=what, less=before, batch_size=self.batch_size)
        rows.hold(already=before.held_bytes)  # read twice
        # A sum that is not finite shows in both.
        before.require_finite()
        rows.require_finite()
        how = {"keep": self.keep, "ridge": self.ridge}
        fits = fit_backgrounds(rows, self._parts, **how, relative=self.relative, batch_size=rows.batch_size)
        rows.require_finite()
        return fits


def algorithm_ggd() -> GradientDifference:
    """The paper's attack as printed: top 10 % of the coordinates, λ = 1e-3, Σ −log p."""
    return GradientDifference(relative=False, by="log p", name="ggd")


def gradient_difference(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    candidates: object,
    background: object,
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
    and exact copies are refused.

    `keep` is the share of coordinates taken, those that vary most over the background; one that does not vary is never
    taken. `ridge` is λ, or with `relative_ridge` λ in units of the mean variance of those coordinates: variances of
    gradients are often far below the default, and s is then close to ‖Δ − μ̂‖²/λ. With `repetitions` above 1 the
    background is cut by `generator` into as many disjoint parts. `batch_size` is the number of examples whose gradients
    are computed at once; by default as memory allows. Gradients are of the parameters that are trainable in the
    original, or of all where none is.

    Where Δ does not vary over the background in any coordinate, as for identical models, every statistic is 0, every
    p-value 1, and a `WarpWarning` says so.
    """
    attack = GradientDifference(keep, ridge, relative_ridge, repetitions, "distance", generator, batch_size)
    device = device_of(original, what="original")
    given = {"candidates": candidates, "background": background, "calibration": calibration}
    # A data set may augment: both models must see the same inputs.
    sets = {
        what: as_tensors(as_examples(source, what=what).to(device))
        for what, source in given.items()
        if source is not None or what != "calibration"
    }
    for what, model in (("original", original), ("unlearned", unlearned)):
        training = [path or type(model).__name__ for path, module in model.named_modules() if module.training]
        if training:
            raise InputError(f"the {what} model is in train mode ({training[0]}); call `{what}.eval()` first")
    check_pair(original, unlearned)
    names = compared_parameters(original)
    before, after = gradient_copy(original, names), gradient_copy(unlearned, names)
    check_examples(before, dict(sets))
    _check_disjoint(sets)
    pair = Pair(before, after, sets["background"], sets["background"])
    with full_precision():
        attack.fit([pair])
        fits = attack._fits(pair, None)
        found = {what: _distances(attack, pair, part, what) for what, part in sets.items() if what != "background"}
    if not any(fit.coordinates for fit in fits):
        warnings.warn(
            "the gradients of the background differ between the two models in no coordinate, or by the same in all "
            "examples; every statistic is 0 and no candidate can be told from another",
            WarpWarning,
            stacklevel=2,
        )
    statistic, reference = (found[what].mean(0) if what in found else None for what in ("candidates", "calibration"))
    assert statistic is not None
    return Scores(
        statistic=statistic,
        evidence=_evidence(found["candidates"], fits),
        calibrated_p=None if reference is None else conformal_p(statistic, reference),
        calibration_statistic=reference,
        coordinates=tuple(fit.coordinates for fit in fits),
        background=tuple(fit.size for fit in fits),
        ridge=tuple(fit.ridge for fit in fits),
    )


def log_tail(s: ArrayLike, freedom: int) -> Floats:
    """Log P(χ² > s) at `freedom` degrees of freedom, where P itself would round to 0 or 1.

    >>> log_tail([2.0, 4000.0], 2)
    array([-1.e+00, -2.e+03])
    """
    from scipy import special  # takes a second to import

    a, x = freedom / 2, np.asarray(s, dtype=np.float64) / 2
    with np.errstate(divide="ignore"):
        # Two ways that lose no digits for large and for moderate P.
        found = np.where(x < a, np.log1p(-special.gammainc(a, x)), np.log(special.gammaincc(a, x)))
    far = np.isneginf(found) & np.isfinite(x)
    if far.any():
        found[far] = _log_upper_gamma(a, x[far])
    return np.asarray(found, dtype=np.float64)


def _log_upper_gamma(a: float, x: Floats) -> Floats:
    """Log Q(a, x) for x far above a, by Legendre's continued fraction from its end."""
    from scipy.special import gammaln

    fraction = np.zeros_like(x)
    for n in range(200, 0, -1):
        fraction = n * (a - n) / (x + 2 * n + 1 - a + fraction)
    return np.asarray(a * np.log(x) - x - gammaln(a) - np.log(x + 1 - a + fraction))


def _evidence(distances: Floats, fits: Sequence[BackgroundFit]) -> Floats:
    found = np.zeros(distances.shape[1])
    for s, fit in zip(distances, fits, strict=False):  # no fits of identical models
        found -= log_tail(s, fit.coordinates) if fit.coordinates else 0
    return found


def _distances(attack: GradientDifference, pair: Pair, examples: TensorExamples, what: str) -> Floats:
    """The s of every row of a set under every fit, shape (repetitions, n); 0 for identical models."""
    rows = GradientRows(pair.original, examples, what=what, batch_size=attack.batch_size)
    found = []
    for begin, end in spans(len(examples), rows.batch_size):
        batch = Batch(examples.x[begin:end], examples.y[begin:end], pair.original)
        found.append(attack.distances(pair, batch)[1].cpu().numpy())
    whole = np.concatenate(found, axis=1)
    whole = whole if len(whole) else np.zeros((1, len(examples)))
    wrong = np.flatnonzero(~np.isfinite(whole).all(0))
    if wrong.size:
        raise DataError(
            f"the gradient of row {wrong[0]} of the {what} set is not finite at one of the models; the weights are "
            "damaged or the loss overflows: use finite weights, or remove the row"
        )
    return whole


def _check_disjoint(sets: dict[str, TensorExamples]) -> None:
    for one, other in (("candidates", "background"), ("candidates", "calibration"), ("background", "calibration")):
        if one in sets and other in sets:
            copies = copies_of(sets[one], sets[other])
            if len(copies):
                raise DataError(
                    f"{len(copies)} examples of the {other} set are also in the {one} set (first: {other} row "
                    f"{int(copies[0])}); the test compares with examples apart: remove them from the {other} set"
                )
