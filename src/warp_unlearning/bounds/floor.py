"""`reconstruction_floor`: the information-theoretic floor of a real model, and the effect of teleportation on it.

Clean gradients are a mixture with diagonal covariances, fitted by scikit-learn to the gradients of single examples. The
noise of coordinate j is the variance of the mean gradient of a retain batch of B examples, γⱼ² = Var(gⱼ)/B, and at
least 1e-12 of its mean over coordinates: about what float32 rounds away. With one component and the same examples on
both sides every signal-to-noise ratio is B; more components leave less variance within each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.examples import Examples, TensorExamples, as_examples, as_tensors
from ..errors import DataError, InputError
from ..models.own import check_examples
from ..randomness import Streams
from ..symmetry.rescaling import Law, check_law
from .channel_ratios import GraphRatios, Seen, choose_coordinates, gradient_rows, graph_ratios
from .information import (
    Array,
    diagonal_information_bound,
    entropy_floor,
    floor_ratio,
    log_normal_gain,
    sampled_gain,
)
from .report import EnergySpread, FloorRow, ReconstructionFloor

SPREADS = (0.1, 0.2, 0.4, 0.8)
NOISE_FLOOR = 1e-12
LARGEST_GAIN = 700.0  # exp of it is a float


def reconstruction_floor(
    model: nn.Module,
    *,
    data: object,
    retain: object | None = None,
    law: Law = "lognormal",
    spread: float | Sequence[float] = SPREADS,
    seen: Seen = "teleported",
    through_norm: bool = True,
    parameters: str | Sequence[str] = "all",
    coordinates: int = 256,
    components: int = 3,
    batch: int = 5,
    examples: int = 1000,
    draws: int = 1000,
    entropy: float | None = None,
    require_energy: bool = False,
    seed: int = 0,
) -> ReconstructionFloor:
    """The floor under the error of reconstructing an input from its gradient, without and with a change of basis.

    `data` are examples like those an attacker reconstructs, `retain` those whose batches of `batch` make the noise, by
    default the same; each a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`, of which at most
    `examples` are used. Gradients are taken with the model in eval mode at `coordinates` of "all" its parameters, the
    "first" layer's, or those named. Factors have the `law` and `spread` (or several) of `ChangeOfBasis`; `seen` says
    whether the attacker holds the gradient in the moved basis or, "conjugated", the step taken there and moved back.
    With `entropy`, H(x) in nats, floors are absolute. `require_energy` refuses ratios with E[r²] other than 1, for
    which no gain is promised; without it the violation is reported. `model` stays as it is.
    """
    spreads = _spreads(law, spread)
    _require_counts(coordinates=coordinates, components=components, batch=batch, examples=examples, draws=draws)
    if entropy is not None and (not isinstance(entropy, int | float) or not isfinite(entropy)):
        raise InputError(f"the entropy is {entropy}; give a finite number of nats, or leave it out")
    streams = Streams(seed, "bounds")
    copied = deepcopy(model).eval()
    known, retained = _sets(copied, data, retain, examples, streams)
    _require_enough(len(known), len(known if retained is None else retained), components=components)
    chosen = choose_coordinates(
        copied, parameters=parameters, count=coordinates, generator=streams.generator("coordinates")
    )
    ratios = graph_ratios(copied, chosen, through_norm=through_norm, seen=seen)
    rows = gradient_rows(copied, known, chosen, what="data")
    noise = rows if retained is None else gradient_rows(copied, retained, chosen, what="retain")
    fit = fit_gradients(rows, noise, components=components, batch=batch, seed=streams.number("mixture"))
    dimensions = prod(known.x.shape[1:])
    information = diagonal_information_bound(fit.weights, fit.snr)

    def floor(nats: float) -> float | None:
        return None if entropy is None else entropy_floor(entropy - nats, dimensions=dimensions)

    found: list[FloorRow] = []
    for s in spreads:
        energies = ratios.log_energies(law, s)
        if require_energy:
            _require_energy(energies, law, s, chosen.label)
        # The same generator for every spread makes their draws alike.
        drawn = ratios.log_squares(law, s, draws=draws, generator=streams.generator("factors"))
        gain = sampled_gain(fit.weights, fit.snr, drawn, dimensions=dimensions)
        exact = _quadrature_gains(fit, ratios, s, dimensions) if law == "lognormal" else None
        after = information - 0.5 * gain.value * dimensions
        row = FloorRow(
            spread=s,
            energy=_energy_spread(np.exp(energies)),
            gain=gain,
            matched_gain=sampled_gain(fit.weights, fit.snr, drawn - energies, dimensions=dimensions),
            quadrature_gain=None if exact is None else exact[0],
            matched_quadrature_gain=None if exact is None else exact[1],
            information=after,
            floor=floor(after),
        )
        if max(gain.value, row.matched_gain.value) > LARGEST_GAIN:
            raise InputError(
                f"the floor ratio of {len(chosen)} coordinates at spread {s:g} is too large for a number, with only "
                f"{dimensions} input numbers; give fewer coordinates or a smaller spread"
            )
        found.append(row)
    return ReconstructionFloor(
        law=law,
        seen=seen,
        parameters=parameters if isinstance(parameters, str) else ", ".join(parameters),
        dimensions=dimensions,
        coordinates=len(chosen),
        available=chosen.available,
        rescaled=int((np.diff(ratios.powers.indptr) > 0).sum()),
        silent=fit.silent,
        channels=ratios.channels,
        examples=len(known),
        components=len(fit.weights),
        batch=batch,
        draws=draws,
        seed=seed,
        snr=_snr_points(fit),
        information=information,
        relative_floor=floor_ratio(-information, dimensions=dimensions),
        entropy=entropy,
        floor=floor(information),
        rows=tuple(found),
        notes=(*fit.notes, *_notes(fit, ratios, found, count=len(chosen), wanted=coordinates)),
    )


@dataclass(frozen=True, eq=False)
class GradientFit:
    """Weights (K,) and signal-to-noise ratios αᵢⱼ (K, m); `silent` coordinates never changed, and have ratio 0."""

    weights: Array
    snr: Array
    silent: int
    notes: tuple[str, ...]


def fit_gradients(rows: Array, retained: Array, *, components: int, batch: int, seed: int) -> GradientFit:
    """The model of the gradients `rows`, (n, m), in the noise of batches from `retained`, (n′, m)."""
    variance, noise = rows.var(0), retained.var(0) / batch
    level = NOISE_FLOOR * float(noise.mean())
    if level == 0:
        raise DataError("no gradient of the retained examples differs from another; there is no noise to compare with")
    live = variance > level
    if not live.any():
        raise DataError("no gradient differs from another at the chosen coordinates; choose other parameters")
    standard = (rows[:, live] - rows[:, live].mean(0)) / np.sqrt(variance[live])
    weights, within, notes = _mixture(standard, components, seed)
    snr = np.zeros((len(weights), rows.shape[1]))
    snr[:, live] = within * variance[live] / np.maximum(noise[live], level)
    return GradientFit(weights, snr, int((~live).sum()), notes)


def _mixture(standard: Array, components: int, seed: int) -> tuple[Array, Array, tuple[str, ...]]:
    """Weights (K,) and variances (K, m) of a fit to standardised rows, and notes."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    # Rows are in units of their own deviation, so that scikit-learn's 1e-6 on every variance is small.
    model = GaussianMixture(components, covariance_type="diag", random_state=seed % 2**32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(standard)
    messages = dict.fromkeys(
        " ".join(str(w.message).split()).split(". ")[0].rstrip(".") for w in caught if w.category is ConvergenceWarning
    )
    kept = model.weights_ > 0
    notes = tuple(f"the fit of the mixture did not settle: {message}" for message in messages)
    return model.weights_[kept] / model.weights_[kept].sum(), model.covariances_[kept], notes


def _quadrature_gains(
    fit: GradientFit, ratios: GraphRatios, spread: float, dimensions: int
) -> tuple[float, float] | None:
    """The gains as drawn and matched, from r² = E[r²] e^Y: log(1 + α) − log(1 + α E[r²]) + Δψ(α E[r²], s)."""
    moments = ratios.log_moments(spread)
    if moments is None:
        return None
    mean, deviation = moments
    energy = np.exp(mean + 0.5 * deviation**2)
    drawn, matched = np.log1p(fit.snr) - np.log1p(fit.snr * energy), np.zeros_like(fit.snr)
    for s in np.unique(deviation[deviation > 0]):
        like = deviation == s
        drawn[:, like] += log_normal_gain(fit.snr[:, like] * energy[like], float(s))
        matched[:, like] = log_normal_gain(fit.snr[:, like], float(s))
    return float(fit.weights @ drawn.sum(1)) / dimensions, float(fit.weights @ matched.sum(1)) / dimensions


def _spreads(law: Law, spread: float | Sequence[float]) -> tuple[float, ...]:
    # Scalars and arrays of numpy are taken as well.
    given: Any = spread.tolist() if hasattr(spread, "tolist") else spread
    several = tuple(given) if isinstance(given, Sequence) else (given,)
    if not several:
        raise InputError("no spread was given; give a number above 0, or several")
    for one in several:
        check_law(law, one)
    return tuple(float(one) for one in several)


def _require_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 2 if name in ("examples", "draws") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} is {value!r}; give a whole number of at least {least}")


def _require_enough(known: int, retained: int, *, components: int) -> None:
    if known < max(2, 2 * components) or retained < 2:
        raise DataError(
            f"there are {known} examples for {components} components and {retained} for the noise; give at "
            "least 2 for each component and 2 for the noise, or ask for fewer components"
        )


def _require_energy(log_energies: Array, law: Law, spread: float, label: Callable[[int], str]) -> None:
    worst = int(np.argmax(np.abs(log_energies)))
    if abs(log_energies[worst]) > 1e-9:
        raise InputError(
            f"E[r²] is {np.exp(log_energies[worst]):.6g} for {label(worst)} under law {law!r} with spread {spread:g}, "
            "not 1, so that no gain is promised; leave require_energy out and read the energy-matched gain, or choose "
            "parameters that lead out of free channels under law='lognormal'"
        )


def _sets(
    model: nn.Module, data: object, retain: object | None, count: int, streams: Streams
) -> tuple[TensorExamples, TensorExamples | None]:
    first = next(model.parameters(), None)
    if first is None:
        raise InputError("the model has no parameters; there is no gradient to look at")
    given = {"data": data} if retain is None else {"data": data, "retain": retain}
    sets = {what: as_examples(source, what=what).to(first.device) for what, source in given.items()}
    check_examples(model, sets)
    parts = {what: _part(examples, count, streams.generator(what)) for what, examples in sets.items()}
    return parts["data"], parts.get("retain")


def _part(examples: Examples, count: int, generator: torch.Generator) -> TensorExamples:
    if len(examples) <= count:
        return as_tensors(examples)
    return TensorExamples(*examples.take(torch.randperm(len(examples), generator=generator)[:count].sort().values))


def _snr_points(fit: GradientFit) -> tuple[float, float, float]:
    """The 5, 50 and 95 % points of a coordinate's signal-to-noise ratio, over a coordinate drawn evenly and a component
    drawn by its weight.
    """
    components, coordinates = fit.snr.shape
    ratios, chances = fit.snr.reshape(-1), np.repeat(fit.weights, coordinates)
    ascending = np.argsort(ratios)
    share_below = np.cumsum(chances[ascending]) / coordinates
    last = components * coordinates - 1  # where rounding leaves the sum below .95
    low, middle, high = (
        float(ratios[ascending][min(np.searchsorted(share_below, at), last)]) for at in (0.05, 0.5, 0.95)
    )
    return low, middle, high


def _energy_spread(energies: Array) -> EnergySpread:
    outside = float((np.abs(energies - 1) > 0.05).mean())
    return EnergySpread(float(energies.min()), float(np.median(energies)), float(energies.max()), outside)


def _notes(
    fit: GradientFit, ratios: GraphRatios, rows: Sequence[FloorRow], *, count: int, wanted: int
) -> Iterator[str]:
    if count < wanted:
        yield f"there are {count} coordinates to choose from, fewer than the {wanted} wanted; all are used"
    if fit.silent:
        yield f"{fit.silent} coordinates have the same gradient for every example, and hold no information"
    if not ratios.channels:
        yield "no free channel rescales these coordinates: a change of basis leaves them, and the floor, as they are"
    lower = [row.spread for row in rows if row.gain.value < -2 * row.gain.standard_error]
    if lower:
        yield (
            f"as drawn the floor is lower with teleportation than without at spread "
            f"{', '.join(f'{s:g}' for s in lower)}: the factors raise the mean energy of these gradients by more than "
            "their randomness hides"
        )
