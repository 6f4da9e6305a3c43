"""`reconstruction_floor`: the information-theoretic floor of a real model, and what teleportation does to it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.examples import Examples, TensorExamples, as_examples, as_tensors
from ..errors import InputError
from ..models.own import check_examples
from ..randomness import Streams
from ..symmetry.rescaling import Law, check_law
from .coordinates import Coordinates, choose_coordinates
from .covariance import Array
from .diagonal_bound import diagonal_information_bound, sampled_gain
from .entropy_floor import entropy_floor, floor_ratio
from .floor_report import EnergySpread, FloorRow, ReconstructionFloor
from .gradient_fit import GradientFit, fit_gradients, require_enough
from .gradient_rows import gradient_rows
from .graph_ratios import GraphRatios, Seen, graph_ratios
from .log_normal import log_normal_gain
from .monte_carlo import MonteCarlo

SPREADS = (0.1, 0.2, 0.4, 0.8)


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
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
        raise InputError(f"draws is {draws!r}; give a whole number of at least 2")
    if entropy is not None and (not isinstance(entropy, int | float) or not isfinite(entropy)):
        raise InputError(f"the entropy is {entropy}; give a finite number of nats, or leave it out")
    streams = Streams(seed, "bounds")
    copied = deepcopy(model).eval()
    held, kept = _sets(copied, data, retain, examples, streams)
    require_enough(len(held), len(held if kept is None else kept), components=components, batch=batch)
    chosen = choose_coordinates(
        copied, parameters=parameters, count=coordinates, generator=streams.generator("coordinates")
    )
    ratios = graph_ratios(copied, chosen, through_norm=through_norm, seen=seen)
    rows = gradient_rows(copied, held, chosen, what="data")
    noise = rows if kept is None else gradient_rows(copied, kept, chosen, what="retain")
    fit = fit_gradients(rows, noise, components=components, batch=batch, seed=streams.number("mixture"))
    case = _Case(fit, ratios, chosen, prod(held.x.shape[1:]), law, draws, entropy, require_energy)
    information = diagonal_information_bound(fit.weights, fit.snr)
    found = tuple(case.row(s, information, streams.generator("factors")) for s in spreads)
    return ReconstructionFloor(
        law=law,
        seen=seen,
        parameters=parameters if isinstance(parameters, str) else ", ".join(parameters),
        dimensions=case.dimensions,
        coordinates=len(chosen),
        available=chosen.available,
        rescaled=int((np.diff(ratios.powers.indptr) > 0).sum()),
        silent=fit.silent,
        channels=ratios.channels,
        examples=len(held),
        components=len(fit.weights),
        batch=batch,
        draws=draws,
        seed=seed,
        snr=_snr_points(fit),
        information=information,
        relative_floor=floor_ratio(-information, dimensions=case.dimensions),
        entropy=entropy,
        floor=case.floor(information),
        rows=found,
        notes=(*fit.notes, *_notes(fit, ratios, chosen, coordinates), *_lowered(found)),
    )


@dataclass(frozen=True, eq=False)
class _Case:
    """One model with its fit: what a row is computed from."""

    fit: GradientFit
    ratios: GraphRatios
    coordinates: Coordinates
    dimensions: int
    law: Law
    draws: int
    entropy: float | None
    require_energy: bool

    def row(self, spread: float, information: float, generator: torch.Generator) -> FloorRow:
        """The floor at one spread; one generator for all spreads makes their draws alike."""
        energies = self.ratios.log_energies(self.law, spread)
        if self.require_energy:
            self._require(energies, spread)
        drawn = self.ratios.log_squares(self.law, spread, draws=self.draws, generator=generator)
        gain = self._sampled(drawn)
        normal = self.law == "lognormal" and self.ratios.never_held(spread)
        exact = self._by_quadrature(spread) if normal else (None, None)
        after = information - 0.5 * gain.value * self.dimensions
        return FloorRow(
            spread=spread,
            energy=_energy_spread(np.exp(energies)),
            gain=gain,
            matched_gain=self._sampled(drawn - energies),
            quadrature_gain=exact[0],
            matched_quadrature_gain=exact[1],
            information=after,
            floor=self.floor(after),
        )

    def floor(self, information: float) -> float | None:
        """The floor where the gradient tells at most so many nats; None without H(x)."""
        if self.entropy is None:
            return None
        return entropy_floor(self.entropy - information, dimensions=self.dimensions)

    def _sampled(self, log_squares: Array) -> MonteCarlo:
        total = sampled_gain(self.fit.weights, self.fit.snr, log_squares)
        return MonteCarlo(total.value / self.dimensions, total.standard_error / self.dimensions, total.draws)

    def _by_quadrature(self, spread: float) -> tuple[float, float]:
        """The gains as drawn and matched, from r² = E[r²] e^Y: log(1 + α) − log(1 + α E[r²]) + Δψ(α E[r²], s)."""
        mean, deviation = self.ratios.log_moments(spread)
        energy = np.exp(mean + 0.5 * deviation**2)
        snr, weights = self.fit.snr, self.fit.weights
        drawn = np.log1p(snr) - np.log1p(snr * energy)
        matched = np.zeros_like(snr)
        for s in np.unique(deviation[deviation > 0]):
            like = deviation == s
            drawn[:, like] += log_normal_gain(snr[:, like] * energy[like], float(s)).values
            matched[:, like] = log_normal_gain(snr[:, like], float(s)).values
        return tuple(float(weights @ gains.sum(1)) / self.dimensions for gains in (drawn, matched))  # type: ignore[return-value]

    def _require(self, log_energies: Array, spread: float) -> None:
        worst = int(np.argmax(np.abs(log_energies)))
        if abs(log_energies[worst]) > 1e-9:
            raise InputError(
                f"E[r²] is {np.exp(log_energies[worst]):.6g} for {self.coordinates.label(worst)} under law "
                f"{self.law!r} with spread {spread:g}, not 1, so that no gain is promised; leave require_energy out "
                "and read the energy-matched gain, or choose parameters that lead out of free channels under "
                "law='lognormal'"
            )


def _spreads(law: Law, spread: float | Sequence[float]) -> tuple[float, ...]:
    # A number of numpy's is one as well, and so is an array of them a list.
    listed: Any = spread.tolist() if hasattr(spread, "tolist") else spread
    given = tuple(listed) if isinstance(listed, Sequence) else (listed,)
    if not given:
        raise InputError("no spread was given; give a number above 0, or several")
    for one in given:
        check_law(law, one)
    return tuple(float(one) for one in given)


def _sets(
    model: nn.Module, data: object, retain: object | None, count: int, streams: Streams
) -> tuple[TensorExamples, TensorExamples | None]:
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise InputError(f"examples is {count!r}; give a whole number of at least 2")
    first = next(model.parameters(), None)
    if first is None:
        raise InputError("the model has no parameters; there is no gradient to look at")
    sets: dict[str, Examples] = {"data": as_examples(data, what="data").to(first.device)}
    if retain is not None:
        sets["retain"] = as_examples(retain, what="retain").to(first.device)
    check_examples(model, sets)
    parts = {what: _part(examples, count, streams.generator(what)) for what, examples in sets.items()}
    return parts["data"], parts.get("retain")


def _part(examples: Examples, count: int, generator: torch.Generator) -> TensorExamples:
    if len(examples) <= count:
        return as_tensors(examples)
    x, y = examples.take(torch.randperm(len(examples), generator=generator)[:count].sort().values)
    return TensorExamples(x, y)


def _snr_points(fit: GradientFit) -> tuple[float, float, float]:
    values = fit.snr.reshape(-1)
    order = np.argsort(values)
    reached = np.cumsum(np.repeat(fit.weights, fit.snr.shape[1])[order]) / fit.snr.shape[1]
    at = np.searchsorted(reached, (0.05, 0.5, 0.95)).clip(max=len(values) - 1)
    low, middle, high = (float(v) for v in values[order][at])
    return low, middle, high


def _energy_spread(energies: Array) -> EnergySpread:
    outside = float((np.abs(energies - 1) > 0.05).mean())
    return EnergySpread(float(energies.min()), float(np.median(energies)), float(energies.max()), outside)


def _notes(fit: GradientFit, ratios: GraphRatios, chosen: Coordinates, wanted: int) -> list[str]:
    notes = []
    if len(chosen) < wanted:
        notes.append(
            f"there are {len(chosen)} coordinates to choose from, fewer than the {wanted} asked for; all are used"
        )
    if fit.silent:
        notes.append(f"{fit.silent} coordinates have the same gradient for every example, and tell nothing")
    if not ratios.channels:
        notes.append(
            "no free channel meets these coordinates: a change of basis leaves them, and the floor, as they are"
        )
    return notes


def _lowered(rows: Sequence[FloorRow]) -> list[str]:
    """Said aloud where it is so: the floor that teleportation is to raise is lower with it."""
    lower = [row.spread for row in rows if row.gain.value < -2 * row.gain.standard_error]
    if not lower:
        return []
    return [
        f"as drawn the floor is lower with teleportation than without at spread {', '.join(f'{s:g}' for s in lower)}: "
        "the factors raise the mean energy of these gradients by more than their randomness hides"
    ]
