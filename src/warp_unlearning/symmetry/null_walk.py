"""The steps of a null-space move: where to, how far, and when a step is too long (equations in `null_space`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linalg.on_host import on_host
from ..module_tree import parameters_by_name
from .directions import Direction, inner, norm_of
from .eager_steps import EagerSteps
from .forget_energy import ForgetEnergy
from .halving import longest_that_does
from .null_projection import NullProjection
from .null_scope import Scope
from .steps import Descent, RepeatedSteps, Steps
from .symmetry import Probe
from .walk_parts import Ground, length_within, longest_way, put, term_names, unit_of

Aim = Literal["descent", "random"]
Protected = Literal["retain", "both"]

# Rounding in float32 makes energies that are equal differ by about this share.
_SAME = 1e-6


class Lengths(Protocol):
    """The settings of `NullSpace` that decide where a step goes and how far."""

    aim: Aim
    protect: Protected
    step_size: float
    steps: int
    dispersion: float
    kick: float
    radius: float
    halvings: int


class Walked(NamedTuple):
    """The shift of every movable parameter after all steps, the summed energies before and after, where they were
    measured, whether any step was taken, and how often the last one was halved.
    """

    shifts: Direction
    energies: tuple[float, float] | None
    moved: bool
    halved: int = 0


def walk(
    model: nn.Module,
    scope: Scope,
    probe: Probe,
    settings: Lengths,
    energy: ForgetEnergy,
    *,
    generator: torch.Generator,
    halved: int = 0,
    repeated: RepeatedSteps | None = None,
) -> Walked:
    """Take all steps from where the model stands; a step before was `halved` so often, and the search for a length
    begins there. `repeated` may have graphs for them.

    They are taken in the memory of the model's own parameters, which hold what they held before once it returns.
    """
    every = parameters_by_name(model)
    parameters = {name: every[name] for name in scope.names}
    if not parameters:
        return Walked({}, None, moved=False, halved=halved)
    forgets = probe.forget is not None
    if settings.aim == "descent" and settings.dispersion == 0 and not forgets:
        raise InputError("with dispersion 0 and no examples to forget there is nothing to descend; give forget=...")
    projection = NullProjection(scope, parameters)
    start = projection.layout.gathered(parameters)
    descent = Descent(energy, forgets and settings.protect == "both", probe.reference)
    way = _Way(descent, parameters, projection, _on_device(generator, start.device), start, halved)
    one = _way_of_stepping(way, settings, repeated)
    try:
        seen = _taken(settings, one)
        shifts = projection.layout.scattered(way.there - start)
    finally:
        put(parameters, projection.layout, start)
    measured = bool(seen) and forgets and isfinite(seen[0]) and isfinite(seen[-1])
    return Walked(shifts, (seen[0], seen[-1]) if measured else None, moved=len(seen) > 1, halved=way.halved)


@dataclass(eq=False)
class _Way:
    """A walk: θ as it stands, (n), and how often the length of the last step was halved."""

    descent: Descent
    parameters: Mapping[str, nn.Parameter]
    projection: NullProjection
    generator: torch.Generator
    there: Tensor
    halved: int


def _way_of_stepping(way: _Way, settings: Lengths, repeated: RepeatedSteps | None) -> Callable[[], _Step]:
    if settings.aim == "random":
        ground = Ground.of(way.parameters, way.projection, way.descent.reference)
        return lambda: _at_random(way, ground, settings)
    steps = None
    if repeated is not None:
        steps = repeated.steps(way.parameters, way.projection, settings, way.descent)
    if steps is None:
        steps = EagerSteps(Ground.of(way.parameters, way.projection, way.descent.reference), settings)
    found = steps
    return lambda: _downhill(way, found, settings)


def _taken(settings: Lengths, one: Callable[[], _Step]) -> list[float]:
    """Take all steps; the energies on the way."""
    seen: list[float] = []
    for _ in range(settings.steps):
        taken = one()
        if taken.unit == 0:
            break
        seen += [taken.before] if taken.after is None else [taken.before, taken.after]
        if taken.after is None:
            break
    return seen


class _Step(NamedTuple):
    """‖θ_org‖, and the energies around a step; None after one that was not taken."""

    unit: float
    before: float
    after: float | None


def _at_random(way: _Way, ground: Ground, settings: Lengths) -> _Step:
    """Take a random step, however the energy changes."""
    energy = way.descent.energy
    before = energy.value()
    start = way.there
    direction = unit_of(ground.projection(ground.noise(way.generator).unsqueeze(0))[0])
    measure = ground.unit()
    length = longest_way(measure, settings, ground.displacement(start), direction)
    way.there = ground.put(start + (length * direction).to(start))
    unit, measured, taken, after = _read(measure, before, length, energy.value())
    return _Step(unit, measured, after if taken > 0 else None)


def _downhill(way: _Way, steps: Steps, settings: Lengths) -> _Step:
    """Take a step that lowers L and does not raise the energy."""
    energy = way.descent.energy
    found = energy.slopes(way.parameters, loss=way.descent.loss)
    terms = _Terms(term_names(found, disperses=settings.dispersion != 0))
    before, unit, distance, *products = _read(found.energy, steps.survey(found, way.generator))
    if not isfinite(before):
        energy.refuse()
    least = _least_length(way.there.dtype)
    weights, pull = terms.steepest(products, settings, unit, least=least)
    steps.head([weights.get(name, 0.0) for name in terms.names])
    height = 0.5 * before - 0.5 * pull * distance**2
    last = -1

    def tried(halved: int) -> _Try:
        nonlocal last
        last = halved
        way.there, numbers = steps.go(0.5**halved)
        after, taken, away = _read(energy.value(), numbers)
        lower = 0.5 * after - 0.5 * pull * away**2 < height and after <= before * (1 + _SAME)
        return _Try(halved, after, lower=taken > 0 and lower, hopeless=not taken > 0)

    kept = longest_that_does(
        tried,
        lambda one: one.lower,
        halvings=settings.halvings,
        before=way.halved,
        hopeless=lambda one: one.hopeless,
    )
    if kept is None:
        way.there = steps.begun
        return _Step(unit, before, None)
    way.halved = kept.halved
    if last != kept.halved:
        way.there, _ = steps.go(0.5**kept.halved)
    return _Step(unit, before, kept.after)


class _Try(NamedTuple):
    """A step whose length was halved so often: the energy where it leads, whether it lowers what it should, and whether
    no other length could.
    """

    halved: int
    after: float
    lower: bool
    hopeless: bool


class _Terms(NamedTuple):
    """The projected vectors that a step is a sum of, by name (`walk_parts.TERMS`). Along `loss_slope` forgotten
    examples would be learned again, which is the cheapest way to small gradients.
    """

    names: tuple[str, ...]

    def steepest(
        self, products: Sequence[float], settings: Lengths, unit: float, *, least: float
    ) -> tuple[dict[str, float], float]:
        """How much of each vector is in the direction of steepest descent of L, less its part along the loss's slope;
        and β. Nothing where neither term has a direction. `products` are their inner products row by row; lengths below
        `least` are none.
        """
        inner = self._inner(products)
        steepness = _root(inner.get(("slope", "slope"), 0.0), least)
        kicked = _root(inner.get(("noise", "noise"), 0.0), least)
        away: dict[str, float] = {}
        if kicked > 0:
            away = {"displacement": 1.0, "noise": settings.kick * unit / kicked}
        distance = _root(_form(inner, away, away), least)
        weights = {"slope": -1 / steepness} if steepness > 0 else {}
        if distance > 0:
            weights |= {name: settings.dispersion / distance * weight for name, weight in away.items()}
        pull = settings.dispersion * (steepness or 1.0) / distance if distance > 0 else 0.0
        along = _root(inner.get(("loss_slope", "loss_slope"), 0.0), least)
        if along > 0 and _form(inner, weights, weights) > 0:
            weights["loss_slope"] = -_form(inner, weights, {"loss_slope": 1.0}) / along**2
        return weights, pull

    def _inner(self, products: Sequence[float]) -> dict[tuple[str, str], float]:
        return dict(zip(((a, b) for a in self.names for b in self.names), products, strict=True))


def _form(inner: Mapping[tuple[str, str], float], left: Mapping[str, float], right: Mapping[str, float]) -> float:
    """⟨Σ left · vector, Σ right · vector⟩."""
    return sum(a * b * inner[m, n] for m, a in left.items() for n, b in right.items())


def _root(square: float, least: float) -> float:
    """The length with this square; 0 where that is less than `least`."""
    return root if square > 0 and (root := sqrt(square)) >= least else 0.0


def _least_length(dtype: torch.dtype) -> float:
    """What is shorter has lost its direction to rounding, and one over its length is soon no number of the type."""
    about = torch.finfo(dtype)
    return about.tiny / about.eps


def _read(*numbers: Tensor) -> list[float]:
    """The numbers one after the other, in one transfer from each device."""
    return [value for part in on_host(numbers) for value in part.reshape(-1).tolist()]


def _on_device(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator beside the parameters, seeded by the one given: noise for millions of weights is drawn where they
    are.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


def within_radius(
    displacement: Mapping[str, Tensor], direction: Mapping[str, Tensor], length: float, radius: float
) -> float:
    """The largest t ≤ `length` with ‖displacement + t · direction‖ ≤ max(radius, ‖displacement‖), for a unit
    direction: t = −s + √(s² + R² − ‖displacement‖²) with s their inner product.
    """
    if not direction:
        return 0.0
    along, distance = (
        torch.tensor(v, dtype=torch.float64) for v in (inner(displacement, direction), norm_of(displacement))
    )
    longest, bound = (torch.tensor(v, dtype=torch.float64) for v in (length, radius))
    return float(length_within(along, distance, longest, bound))
