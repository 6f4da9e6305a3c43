"""The steps of a null-space move: where to, how far, and when a step is too long (equations in `null_space`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linalg.on_host import on_host
from ..module_tree import parameters_by_name
from .directions import Direction, inner, norm_of
from .forget_energy import ForgetEnergy, Slopes
from .halving import longest_that_does
from .null_projection import NullProjection
from .null_scope import Scope
from .symmetry import Probe

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


@dataclass(eq=False)
class _Ground:
    """The movable parameters, which `put` alone changes meanwhile, and where distances are taken from; vectors are laid
    out by the projection, and none is written to.
    """

    parameters: Mapping[str, nn.Parameter]
    projection: NullProjection
    energy: ForgetEnergy
    reference: Tensor
    unit: Tensor
    # θ, (n).
    weights: Tensor
    # How often the length of the last step was halved.
    halved: int = 0

    def put(self, weights: Tensor) -> Tensor:
        """θ ← weights; θ as it is then, which differs where a parameter is coarser."""
        layout = self.projection.layout
        values = layout.scattered(weights)
        with torch.no_grad():
            torch._foreach_copy_(list(self.parameters.values()), [values[name] for name in self.parameters])
        self.weights = weights if layout.exact else layout.gathered(self.parameters)
        return self.weights

    def displacement(self, weights: Tensor) -> Tensor:
        """θ − θ_org where inputs reach."""
        return self.projection.reached(weights - self.reference)

    def noise(self, generator: torch.Generator) -> Tensor:
        """Normal numbers, (n)."""
        like = self.reference
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


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
) -> Walked:
    """Take all steps from where the model stands; a step before was `halved` so often, and the search for a length
    begins there.

    They are taken in the memory of the model's own parameters, which hold what they held before once it returns.
    """
    every = parameters_by_name(model)
    parameters = {name: every[name] for name in scope.names}
    if not parameters:
        return Walked({}, None, moved=False, halved=halved)
    projection = NullProjection(scope, parameters)
    layout = projection.layout
    start = layout.gathered(parameters)
    given = probe.reference
    reference = start if given is None else layout.gathered({n: given[n].to(p) for n, p in parameters.items()})
    unit = _norm(projection.reached(reference))
    ground = _Ground(parameters, projection, energy, reference, unit, start, halved)
    nearby = _on_device(generator, start.device)
    try:
        seen = _steps(ground, settings, nearby, forgets=probe.forget is not None)
        shifts = layout.scattered(ground.weights - start)
    finally:
        ground.put(start)
    measured = bool(seen) and probe.forget is not None and isfinite(seen[0]) and isfinite(seen[-1])
    return Walked(shifts, (seen[0], seen[-1]) if measured else None, moved=len(seen) > 1, halved=ground.halved)


def _steps(ground: _Ground, settings: Lengths, generator: torch.Generator, *, forgets: bool) -> list[float]:
    """Take all steps; the energies on the way."""
    if settings.aim == "descent" and settings.dispersion == 0 and not forgets:
        raise InputError("with dispersion 0 and no examples to forget there is nothing to descend; give forget=...")
    seen: list[float] = []
    for _ in range(settings.steps):
        if settings.aim == "random":
            taken = _at_random(ground, settings, generator)
        else:
            taken = _downhill(ground, settings, generator, forgets=forgets)
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


def _at_random(ground: _Ground, settings: Lengths, generator: torch.Generator) -> _Step:
    """Take a random step, however the energy changes."""
    before = ground.energy.value()
    start = ground.weights
    direction = _unit(ground.projection(ground.noise(generator).unsqueeze(0))[0])
    length = _length(ground, settings, ground.displacement(start), direction).clamp(min=0)
    ground.put(start + (length * direction).to(start))
    unit, measured, taken, after = _read(ground.unit, before, length, ground.energy.value())
    return _Step(unit, measured, after if taken > 0 else None)


def _downhill(ground: _Ground, settings: Lengths, generator: torch.Generator, *, forgets: bool) -> _Step:
    """Take a step that lowers L and does not raise the energy."""
    start = ground.weights
    displacement = ground.displacement(start)
    found = ground.energy.slopes(ground.parameters, loss=forgets and settings.protect == "both")
    terms = _Terms.of(ground, settings, found, displacement, generator)
    products = (found.energy, ground.unit, _norm(displacement), *terms.products)
    before, unit, distance, *inner = _read(*products)
    if not isfinite(before):
        ground.energy.refuse()
    weights, pull = terms.steepest(inner, settings, unit)
    # Where most of a gradient lies in the span, rounding errors of its projection are not small beside what is left.
    direction = _unit(ground.projection(terms.combined(weights).unsqueeze(0))[0])
    longest = _length(ground, settings, displacement, direction).clamp(min=0)
    height = 0.5 * before - 0.5 * pull * distance**2

    def tried(halved: int) -> _Try:
        length = longest / 2**halved
        there = ground.put(start + (length * direction).to(start))
        after, taken, away = _read(ground.energy.value(), length, _norm(ground.displacement(there)))
        lower = 0.5 * after - 0.5 * pull * away**2 < height and after <= before * (1 + _SAME)
        return _Try(halved, there, after, lower=taken > 0 and lower, hopeless=not taken > 0)

    step = longest_that_does(
        tried,
        lambda one: one.lower,
        halvings=settings.halvings,
        before=ground.halved,
        hopeless=lambda one: one.hopeless,
    )
    if step is None:
        ground.put(start)
        return _Step(unit, before, None)
    ground.halved = step.halved
    if ground.weights is not step.there:
        ground.put(step.there)
    return _Step(unit, before, step.after)


class _Try(NamedTuple):
    """A step whose length was halved so often: where it leads, the energy there, whether it lowers what it should, and
    whether no other length could.
    """

    halved: int
    there: Tensor
    after: float
    lower: bool
    hopeless: bool


@dataclass(frozen=True, eq=False)
class _Terms:
    """Projected vectors that a step is a sum of, and their inner products row by row of the upper triangle.

    `slope` is half the gradient of the energy; `displacement` and `noise` make the way away from θ_org; along
    `loss_slope`, the gradient of the forget batch's mean loss, forgotten examples would be learned again, which is the
    cheapest way to small gradients.
    """

    names: tuple[str, ...]
    vectors: Tensor
    products: tuple[Tensor, ...]

    @classmethod
    def of(
        cls,
        ground: _Ground,
        settings: Lengths,
        found: Slopes,
        displacement: Tensor,
        generator: torch.Generator,
    ) -> _Terms:
        layout = ground.projection.layout
        given: dict[str, Tensor] = {}
        if found.of_energy:
            given["slope"] = 0.5 * layout.gathered(found.of_energy)
        if settings.dispersion != 0:
            given["displacement"], given["noise"] = displacement, ground.noise(generator)
        if found.of_loss is not None:
            given["loss_slope"] = layout.gathered(found.of_loss)
        vectors = ground.projection(torch.stack(list(given.values())))
        exact = vectors.double()
        products = exact @ exact.mT
        return cls(tuple(given), vectors, tuple(row[i:] for i, row in enumerate(products)))

    def steepest(self, products: list[float], settings: Lengths, unit: float) -> tuple[dict[str, float], float]:
        """How much of each vector is in the direction of steepest descent of L, less its part along the loss's slope;
        and β. Nothing where neither term has a direction.
        """
        inner = self._inner(products)
        least = _least_length(self.vectors.dtype)
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

    def combined(self, weights: Mapping[str, float]) -> Tensor:
        """Σ weight · vector."""
        total = torch.zeros_like(self.vectors[0])
        for name, weight in weights.items():
            total.add_(self.vectors[self.names.index(name)], alpha=weight)
        return total

    def _inner(self, products: list[float]) -> dict[tuple[str, str], float]:
        pairs = [(a, b) for i, a in enumerate(self.names) for b in self.names[i:]]
        found = dict(zip(pairs, products, strict=True))
        return found | {(b, a): value for (a, b), value in found.items()}


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


def _norm(vector: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vector, dtype=torch.float64)
    return length


def _unit(vector: Tensor) -> Tensor:
    """The vector at length one; zero where it has none."""
    length = _norm(vector)
    return vector * torch.where(length > 0, 1 / length, 0.0).to(vector)


def _length(ground: _Ground, settings: Lengths, displacement: Tensor, direction: Tensor) -> Tensor:
    """How far to go; 0 where there is no direction."""
    longest, radius = settings.step_size * ground.unit, settings.radius * ground.unit
    along = (displacement.double() * direction.double()).sum()
    found = _within_radius(along, _norm(displacement), longest, radius)
    return torch.where(_norm(direction) > 0, found, 0.0)


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
    return float(_within_radius(along, distance, longest, bound))


def _within_radius(along: Tensor, distance: Tensor, length: Tensor, radius: Tensor) -> Tensor:
    bound = torch.maximum(radius, distance)
    # Factored, so that from outside the radius a direction further out has the length 0 and not a rounding error.
    return torch.minimum(length, -along + torch.sqrt(along**2 + (bound - distance) * (bound + distance)))
