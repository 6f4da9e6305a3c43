"""The steps of a null-space move: where to, how far, and when a step is too long (equations in `null_space`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..gradients.energy import gradient_energy
from .directions import Direction, combined, inner, norm_of
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


@dataclass(frozen=True, eq=False)
class _Ground:
    """The movable parameters of a copy of the model, where distances are taken from, and ‖θ_org‖."""

    model: nn.Module
    scope: Scope
    forget: tuple[Tensor, Tensor] | None
    parameters: Mapping[str, nn.Parameter]
    reference: Mapping[str, Tensor]
    unit: float

    def displacement(self) -> Direction:
        """θ − θ_org where inputs reach."""
        return self.scope.reached({n: p.detach() - self.reference[n] for n, p in self.parameters.items()})

    def energy(self) -> float:
        """Σᵢ ‖∇ℓᵢ‖² of the forget batch, 0 without one, infinite where the loss is."""
        if self.forget is None:
            return 0.0
        with torch.no_grad():
            try:
                return float(gradient_energy(self.model, *self.forget).double().sum())
            except InputError:
                return inf

    def weights(self) -> Direction:
        """θ, as it is."""
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def put(self, weights: Mapping[str, Tensor], direction: Mapping[str, Tensor], length: float) -> None:
        """θ ← weights + length · direction."""
        with torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(weights[name]).add_(direction[name], alpha=length)


Energies = tuple[float, float]


def walk(
    model: nn.Module, scope: Scope, probe: Probe, settings: Lengths, *, generator: torch.Generator
) -> tuple[Direction, Energies | None]:
    """The shift of every movable parameter after all steps, and the summed energies before and after; moves `model`."""
    every = dict(model.named_parameters())
    parameters = {name: every[name] for name in scope.names}
    start = {name: p.detach().clone() for name, p in parameters.items()}
    given = probe.reference
    reference = start if given is None else {n: given[n].detach().to(p) for n, p in parameters.items()}
    ground = _Ground(model, scope, probe.forget, parameters, reference, norm_of(scope.reached(reference)))
    step = _at_random if settings.aim == "random" else _downhill
    nearby = _on_device(generator, parameters)
    seen: list[float] = []
    for _ in range(settings.steps if ground.unit > 0 else 0):
        before, after = step(ground, settings, nearby)
        seen += [before] if after is None else [before, after]
        if after is None:
            break
    shifts = {name: p.detach() - start[name] for name, p in parameters.items()}
    measured = bool(seen) and probe.forget is not None and isfinite(seen[0]) and isfinite(seen[-1])
    return shifts, (seen[0], seen[-1]) if measured else None


def _at_random(ground: _Ground, settings: Lengths, generator: torch.Generator) -> tuple[float, float | None]:
    """Take a random step; the energies around it, or None after it where nothing can move."""
    before = ground.energy()
    direction = random_direction(ground.scope, ground.parameters, generator)
    length = _length(ground, settings, ground.displacement(), direction)
    if length <= 0:
        return before, None
    ground.put(ground.weights(), direction, length)
    return before, ground.energy()


def _downhill(ground: _Ground, settings: Lengths, generator: torch.Generator) -> tuple[float, float | None]:
    """Take a step that lowers L and does not raise the energy; the energies around it, or None after it where there
    is none.
    """
    before, slope = _energy_and_slope(ground)
    displacement = ground.displacement()
    away = _away(ground, settings, generator, displacement)
    direction, pull = _steepest(slope, away, settings.dispersion)
    if settings.protect == "both":
        direction = _orthogonal_to(direction, _loss_slope(ground))
    # Where most of a gradient lies in the span, rounding errors of its projection are not small beside what is left.
    direction = _unit(ground.scope.project(direction)) if direction else {}
    length = _length(ground, settings, displacement, direction)
    if length <= 0:
        return before, None
    start = ground.weights()
    height = 0.5 * before - 0.5 * pull * norm_of(displacement) ** 2
    for _ in range(settings.halvings + 1):
        ground.put(start, direction, length)
        after = ground.energy()
        lower = 0.5 * after - 0.5 * pull * norm_of(ground.displacement()) ** 2 < height
        if lower and after <= before * (1 + _SAME):
            return before, after
        length /= 2
    ground.put(start, direction, 0.0)
    return before, None


def _steepest(slope: Direction, away: Direction, dispersion: float) -> tuple[Direction, float]:
    """The unit direction of steepest descent of L, and β; empty where neither term has a direction."""
    steepness, distance = norm_of(slope), norm_of(away)
    terms: list[tuple[float, Direction]] = []
    if steepness > 0:
        terms.append((-1 / steepness, slope))
    if distance > 0:
        terms.append((dispersion / distance, away))
    pull = dispersion * (steepness or 1.0) / distance if distance > 0 else 0.0
    return _unit(combined(terms) if terms else {}), pull


def _unit(direction: Direction) -> Direction:
    """The direction at length one; empty where it has none."""
    length = norm_of(direction)
    return {name: value / length for name, value in direction.items()} if length > 0 else {}


def _orthogonal_to(direction: Direction, axis: Direction) -> Direction:
    """The direction less its part along the axis."""
    if not axis or not direction:
        return direction
    share = inner(direction, axis) / inner(axis, axis)
    return combined([(1.0, direction), (-share, axis)])


def _loss_slope(ground: _Ground) -> Direction:
    """The projection of the gradient of the forget batch's mean loss: along it, forgotten examples would be learned
    again, which is the cheapest way to small gradients.
    """
    if ground.forget is None or not ground.parameters:
        return {}
    x, y = ground.forget
    with torch.enable_grad():
        loss = F.cross_entropy(ground.model(x), y)
        found = torch.autograd.grad(loss, list(ground.parameters.values()), allow_unused=True)
    slope = ground.scope.project(_named(ground, found))
    return slope if norm_of(slope) > 0 else {}


def _away(ground: _Ground, settings: Lengths, generator: torch.Generator, displacement: Direction) -> Direction:
    """The projected displacement with the kick; empty without dispersion."""
    if settings.dispersion == 0:
        if ground.forget is None:
            raise InputError("with dispersion 0 and no examples to forget there is nothing to descend; give forget=...")
        return {}
    kick = random_direction(ground.scope, ground.parameters, generator)
    if not kick:
        return {}
    return combined([(1.0, ground.scope.project(displacement)), (settings.kick * ground.unit, kick)])


def _length(ground: _Ground, settings: Lengths, displacement: Direction, direction: Direction) -> float:
    longest, radius = settings.step_size * ground.unit, settings.radius * ground.unit
    return within_radius(displacement, direction, longest, radius)


def _energy_and_slope(ground: _Ground) -> tuple[float, Direction]:
    """Σᵢ ‖∇ℓᵢ‖², and the projection of ∇ ½ Σᵢ ‖∇ℓᵢ‖² = Σᵢ Hᵢ∇ℓᵢ; 0 and nothing without examples to forget."""
    if ground.forget is None or not ground.parameters:
        return ground.energy(), {}
    with torch.enable_grad():
        energies = gradient_energy(ground.model, *ground.forget)
        found = torch.autograd.grad(0.5 * energies.sum(), list(ground.parameters.values()), allow_unused=True)
    return float(energies.detach().double().sum()), ground.scope.project(_named(ground, found))


def _named(ground: _Ground, gradients: tuple[Tensor | None, ...]) -> Direction:
    pairs = zip(ground.parameters.items(), gradients, strict=True)
    return {name: torch.zeros_like(p) if g is None else g.detach() for (name, p), g in pairs}


def _on_device(generator: torch.Generator, parameters: Mapping[str, Tensor]) -> torch.Generator:
    """A generator beside the parameters, seeded by the one given: noise for millions of weights is drawn where they
    are.
    """
    device = next((p.device for p in parameters.values()), torch.device("cpu"))
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


def random_direction(scope: Scope, parameters: Mapping[str, Tensor], generator: torch.Generator) -> Direction:
    """A random unit direction within the scope: normal noise, projected; empty where the scope is."""
    drawn = {
        name: torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
        for name, p in parameters.items()
    }
    return _unit(scope.project(drawn))


def within_radius(
    displacement: Mapping[str, Tensor], direction: Mapping[str, Tensor], length: float, radius: float
) -> float:
    """The largest t ≤ `length` with ‖displacement + t · direction‖ ≤ max(radius, ‖displacement‖), for a unit
    direction: t = −s + √(s² + R² − ‖displacement‖²) with s their inner product.
    """
    if not direction:
        return 0.0
    along = inner(displacement, direction)
    distance = norm_of(displacement)
    bound = max(radius, distance)
    # Factored, so that from outside the radius a direction further out has the length 0 and not a rounding error.
    return min(length, -along + sqrt(along**2 + (bound - distance) * (bound + distance)))
