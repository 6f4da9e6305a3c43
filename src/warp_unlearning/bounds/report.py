"""The result of `reconstruction_floor`, as plain data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

from .information import MonteCarlo

SCHEMA_VERSION = 1

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

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the version of its form."""
        rows = [{**asdict(row), "factor": row.factor, "matched_factor": row.matched_factor} for row in self.rows]
        return {"schema_version": SCHEMA_VERSION, "kind": "bounds", **asdict(self), "rows": rows}

    def lines(self) -> list[str]:
        """The result in words, cautions included."""
        found = self.as_json()
        return [*head_lines(found), *(_row_line(row) for row in found["rows"]), *tail_lines(found)]


def head_lines(found: Mapping[str, Any]) -> list[str]:
    """The fit and the floor without teleportation, from the plain data of a result."""
    snr = " / ".join(f"{value:.3g}" for value in found["snr"])
    error = "" if found["floor"] is None else f", a mean squared error of {found['floor']:.3g}"
    return [
        f"{found['coordinates']} of {found['available']:,} gradient coordinates ({found['parameters']}) of "
        f"{found['examples']} examples, {found['components']} components, in the noise of a retain batch of "
        f"{found['batch']}; signal-to-noise ratios 5 / 50 / 95 %: {snr}",
        f"without teleportation they hold at most {found['information']:.4g} nats about {found['dimensions']} numbers: "
        f"the floor is {found['relative_floor']:.3g} of the one without a gradient{error}",
        f"{found['seen']} by {found['law']} factors of {found['channels']} channels, which rescale {found['rescaled']} "
        "of these coordinates:",
    ]


def tail_lines(found: Mapping[str, Any]) -> list[str]:
    """The notes and cautions of a result as plain data."""
    return [*(f"note: {note}" for note in found["notes"]), *found["cautions"]]


def factor_text(row: Mapping[str, Any], which: str) -> str:
    """exp(gain) with its standard error."""
    factor = exp(row[which]["value"])
    return f"{factor:.4g} ± {factor * row[which]['standard_error']:.1g}"


def _row_line(row: Mapping[str, Any]) -> str:
    energy = row["energy"]
    return (
        f"  spread {row['spread']:g}: floor ratio {factor_text(row, 'gain')} as drawn, "
        f"{factor_text(row, 'matched_gain')} energy-matched; E[r²] {energy['least']:.3g} to {energy['largest']:.3g}, "
        f"median {energy['median']:.3g}, {100 * energy['outside']:.0f} % of coordinates further than 5 % from 1"
    )
