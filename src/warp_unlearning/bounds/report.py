"""The result of `reconstruction_floor`, and its words."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from .information import MonteCarlo

COLUMNS = ("spread", "as drawn", "energy-matched", "E[r²] least", "median", "largest", "further than 5 % from 1")
CAUTIONS = (
    "This is a floor inside the model's assumptions (a mixture of Gaussians, each coordinate by itself, Gaussian "
    "noise), not a guarantee: real gradients are none of these, and an attacker may do better than the model allows.",
    "It is relative only: the floor with teleportation against the floor without. Both contain the entropy of the "
    "data, which is unknown, and a ratio of two lower bounds does not order the true errors.",
    "The bound lets the attacker know τ, so its gain is not secrecy of τ. It comes from the noise, which the model "
    "adds after the rescaling; noise that is rescaled with the gradient, as that of a retain batch in the same step "
    "is, leaves the bound exactly as it was.",
    "E[r²] = 1 cannot hold for every coordinate of a real network (ratios multiply to 1 along every path), so the "
    "ratios are taken from the model's own graph and the assumption's violation is printed. As drawn, a coordinate "
    "with E[log r²] ≥ 0 always lowers the floor, and along a path these add up to 0; energy-matched (r² divided by its "
    "mean) the random part alone is left, but no network can be rescaled so.",
    "Coordinates add up in the diagonal model however much they repeat each other: the ratio grows with their number, "
    "and belongs to an attacker who sees these coordinates and no others.",
)


@dataclass(frozen=True)
class EnergySpread:
    """E[r²] over coordinates, exact for the law, and the share of them further than 5 % from 1."""

    least: float
    median: float
    largest: float
    outside: float


@dataclass(frozen=True)
class FloorRow:
    """The floor at one spread of the factors.

    `gain` is log ξ_tele/ξ₀ = (1/d) Σ πᵢ Σⱼ Δψᵢⱼ with the ratios as drawn, `matched_gain` with each r² divided by its
    mean; both by Monte Carlo, and by quadrature where log r² is normal. `information` is the bound on I(x; g) in nats.
    """

    spread: float
    energy: EnergySpread
    gain: MonteCarlo
    matched_gain: MonteCarlo
    quadrature_gain: float | None
    matched_quadrature_gain: float | None
    information: float
    floor: float | None

    @property
    def factor(self) -> float:
        """ξ_tele/ξ₀ as drawn."""
        return exp(self.gain.value)

    @property
    def matched_factor(self) -> float:
        """ξ_tele/ξ₀ with the mean energy of every coordinate kept."""
        return exp(self.matched_gain.value)

    @property
    def cells(self) -> list[str]:
        """The row of a table: the spread, both factors with standard errors, and E[r²]."""
        factors = [
            f"{factor:.4g} ± {factor * gain.standard_error:.1g}"
            for factor, gain in ((self.factor, self.gain), (self.matched_factor, self.matched_gain))
        ]
        energy = self.energy
        ends = [f"{value:.3g}" for value in (energy.least, energy.median, energy.largest)]
        return [f"{self.spread:g}", *factors, *ends, f"{100 * energy.outside:.0f} %"]


@dataclass(frozen=True)
class ReconstructionFloor:
    """Floors under the error of reconstructing an input of `dimensions` numbers from `coordinates` of a gradient.

    `information` bounds I(x; g₀) in nats without teleportation; `relative_floor` = exp(−2 I/d) is that floor against
    the one without any gradient. `entropy`, H(x) in nats, and `floor`, ξ₀, are None unless H(x) was given. `snr` are
    the 5 %, 50 % and 95 % points of the signal-to-noise ratios, weighted by component.
    """

    law: str
    seen: str
    parameters: str
    dimensions: int
    coordinates: int
    available: int
    rescaled: int
    silent: int
    channels: int
    examples: int
    components: int
    batch: int
    draws: int
    seed: int
    snr: tuple[float, float, float]
    information: float
    relative_floor: float
    entropy: float | None
    floor: float | None
    rows: tuple[FloorRow, ...]
    notes: tuple[str, ...]
    cautions: tuple[str, ...] = CAUTIONS

    @property
    def head(self) -> list[str]:
        """The fit and the floor without teleportation, in words."""
        snr = " / ".join(f"{value:.3g}" for value in self.snr)
        error = "" if self.floor is None else f", a mean squared error of {self.floor:.3g}"
        return [
            f"{self.coordinates} of {self.available:,} gradient coordinates ({self.parameters}) of {self.examples} "
            f"examples, {self.components} components, in the noise of a retain batch of {self.batch}; signal-to-noise "
            f"ratios 5 / 50 / 95 %: {snr}",
            f"without teleportation they hold at most {self.information:.4g} nats about {self.dimensions} numbers: the "
            f"floor is {self.relative_floor:.3g} of the one without a gradient{error}",
            f"{self.seen} by {self.law} factors of {self.channels} channels, which rescale {self.rescaled} of these "
            "coordinates:",
        ]

    @property
    def tail(self) -> list[str]:
        """The notes and cautions."""
        return [*(f"note: {note}" for note in self.notes), *self.cautions]

    def lines(self) -> list[str]:
        """The result in words, cautions included."""
        rows = [dict(zip(COLUMNS, row.cells, strict=True)) for row in self.rows]
        return [*self.head, *("; ".join(f"{k} {v}" for k, v in row.items()) for row in rows), *self.tail]
