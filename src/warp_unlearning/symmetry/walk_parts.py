"""The parts of a step downhill within a null space (equations in `null_space`), none of which reads a value.

They are functions of tensors, so that a GPU can repeat them as captured graphs: what depends on values, which share of
each term makes the direction and how long a step is, is decided between them, on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .forget_energy import Slopes
from .null_projection import NullProjection
from .weight_rows import WeightRows


class Reach(Protocol):
    """The settings of `NullSpace` that decide which terms a step has, and bound it."""

    dispersion: float
    step_size: float
    radius: float


@dataclass(frozen=True, eq=False)
class Ground:
    """The movable parameters, which `put` alone changes meanwhile, and where distances are taken from; vectors are laid
    out by the projection, and none is written to.
    """

    parameters: Mapping[str, nn.Parameter]
    projection: NullProjection
    # θ_org, (n).
    reference: Tensor

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, nn.Parameter],
        projection: NullProjection,
        given: Mapping[str, Tensor] | None,
    ) -> Ground:
        """With distances from the `given` weights, or, without them, from where the parameters stand."""
        values = parameters if given is None else {n: given[n].to(p) for n, p in parameters.items()}
        return cls(parameters, projection, projection.layout.gathered(values))

    def unit(self) -> Tensor:
        """‖θ_org‖ where inputs reach, float64."""
        return length_of(self.projection.reached(self.reference))

    def standing(self) -> Tensor:
        """θ, (n)."""
        return self.projection.layout.gathered(self.parameters)

    def put(self, weights: Tensor) -> Tensor:
        """θ ← weights; θ as it is then, which differs where a parameter is coarser."""
        layout = self.projection.layout
        put(self.parameters, layout, weights)
        return weights if layout.exact else self.standing()

    def displacement(self, weights: Tensor) -> Tensor:
        """θ − θ_org where inputs reach."""
        return self.projection.reached(weights - self.reference)

    def noise(self, generator: torch.Generator) -> Tensor:
        """Normal numbers, (n)."""
        like = self.reference
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def put(parameters: Mapping[str, nn.Parameter], layout: WeightRows, weights: Tensor) -> None:
    """θ ← weights, (n)."""
    values = layout.scattered(weights)
    with torch.no_grad():
        torch._foreach_copy_(list(parameters.values()), [values[name] for name in parameters])


class Survey(NamedTuple):
    """Where a step starts, θ − θ_org there, the unit of lengths, and the projected terms that it is a sum of, (m, n);
    `numbers`, float64 (2 + m²), are the unit, the length of the displacement and the inner products of the terms, row
    by row.
    """

    start: Tensor
    displacement: Tensor
    unit: Tensor
    terms: Tensor
    numbers: Tensor


class Heading(NamedTuple):
    """A direction of length one, or zero where there is none, and how far it may be followed at most, float64."""

    direction: Tensor
    longest: Tensor


class Standing(NamedTuple):
    """Where a step has led to, (n), and in `numbers`, float64 (2), its length and the distance from θ_org."""

    weights: Tensor
    numbers: Tensor


TERMS = ("slope", "displacement", "noise", "loss_slope")
"""Half the gradient of the energy; the way away from θ_org, and what is added to that; the gradient of the forget
batch's mean loss."""


def term_names(found: Slopes, *, disperses: bool) -> tuple[str, ...]:
    """The terms that there are, in their order."""
    there = {"slope": bool(found.of_energy), "loss_slope": found.of_loss is not None}
    return tuple(name for name in TERMS if there.get(name, disperses))


def survey(ground: Ground, found: Slopes, noise: Tensor | None) -> Survey:
    """What the direction of a step is decided by; without `noise` there is no term of the displacement."""
    layout = ground.projection.layout
    start = ground.standing()
    displacement = ground.displacement(start)
    given = [0.5 * layout.gathered(found.of_energy)] if found.of_energy else []
    if noise is not None:
        given += [displacement, noise]
    if found.of_loss is not None:
        given.append(layout.gathered(found.of_loss))
    terms = ground.projection(torch.stack(given))
    exact = terms.double()
    unit = ground.unit()
    numbers = torch.cat([torch.stack([unit, length_of(displacement)]), (exact @ exact.mT).reshape(-1)])
    return Survey(start, displacement, unit, terms, numbers)


def heading(ground: Ground, settings: Reach, seen: Survey, combined: Tensor) -> Heading:
    """Where a combination (n) of projected terms points to."""
    # Where most of a gradient lies in the span, rounding errors of its projection are not small beside what is left.
    direction = unit_of(ground.projection(combined.unsqueeze(0))[0])
    return Heading(direction, longest_way(seen.unit, settings, seen.displacement, direction))


def step(ground: Ground, start: Tensor, way: Heading, share: Tensor | float) -> Standing:
    """Go such a share of the longest way."""
    length = way.longest * share
    there = ground.put(start + (length * way.direction).to(start))
    return Standing(there, torch.stack([length, length_of(ground.displacement(there))]))


def longest_way(unit: Tensor, settings: Reach, displacement: Tensor, direction: Tensor) -> Tensor:
    """How far to go; 0 where there is no direction."""
    longest, radius = settings.step_size * unit, settings.radius * unit
    along = (displacement.double() * direction.double()).sum()
    found = length_within(along, length_of(displacement), longest, radius)
    return torch.where(length_of(direction) > 0, found, 0.0).clamp(min=0)


def length_within(along: Tensor, distance: Tensor, length: Tensor, radius: Tensor) -> Tensor:
    """The largest t ≤ `length` that leads no further from θ_org than `radius`, or than `distance` where that is more,
    in a direction of length one `along` the displacement: t = −s + √(s² + R² − distance²).
    """
    bound = torch.maximum(radius, distance)
    # Factored, so that from outside the radius a direction further out has the length 0 and not a rounding error.
    return torch.minimum(length, -along + torch.sqrt(along**2 + (bound - distance) * (bound + distance)))


def length_of(vector: Tensor) -> Tensor:
    """Its length, float64."""
    length: Tensor = torch.linalg.vector_norm(vector, dtype=torch.float64)
    return length


def unit_of(vector: Tensor) -> Tensor:
    """The vector at length one; zero where it has none."""
    length = length_of(vector)
    return vector * torch.where(length > 0, 1 / length, 0.0).to(vector)
