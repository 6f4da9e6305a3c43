"""Null-space moves: the paper's Algorithm TAU (`NullSpace`) and Algorithm FastWARP (`TrackedNullSpace`).

With B an orthonormal basis of what enters a layer on retained data, an update with [ΔW Δb] B = 0 leaves the layer's
outputs on that data, and so the inputs of all layers behind it, as they were. A step goes down

    L(θ) = ½ Σᵢ ‖∇ℓᵢ(θ)‖² − (β/2) ‖θ − θ_org‖²,    W ← W − η (∇_W L)(I − BBᵀ),

the sum being over examples to forget. A basis that holds `energy` < 1 of the inputs, or inputs it has not seen, make
this approximate. A bias moves with its weight: its input is the constant 1, the last coordinate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf, isfinite
from typing import Any, ClassVar, Literal
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from ..errors import DataError, InputError
from ..gradients.energy import EnergyGradient, total_energy
from ..gradients.tracing import copy_with_same_parameters
from ..linalg.subspace import Rule, SecondMoment, global_norm, orthonormal
from ..modules import modes_of, restore_modes, set_mode
from .base import Probe, Sizes, check_options, option
from .layer_inputs import InputBasis, LinearWeight, movable_weights, observe, observe_norms
from .moves import Translation

Aim = Literal["descent", "random"]
BatchNormRule = Literal["freeze", "project"]
Protected = Literal["retain", "both"]
Values = Mapping[str, Tensor]

_STEP_SIZE, _DISPERSION = 0.05, 0.5
_COUNTS = ("k", "k_max", "batch_size", "forget_size", "steps", "rounds")
# A basis that leaves out a smaller share of the inputs than this needs double precision.
_SMALLEST_SHARE_IN_SINGLE = 1e-4


@dataclass(frozen=True, eq=False)
class NullMove(Translation):
    """θ′ = θ + δ with δ orthogonal to the inputs of every layer it touches.

    `bases` span those inputs, by weight name. `left` gives the reason for every parameter that stays.
    `forget_energies` are Σᵢ‖∇ℓᵢ‖² of the forget batch before and after: None without such a batch, and infinite after
    a move that went too far to measure it. `notes` are sentences for the certificate.
    """

    bases: Mapping[str, InputBasis] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    forget_energies: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    def inverse(self) -> NullMove:
        return replace(self, shifts=super().inverse().shifts, forget_energies=None)


@dataclass(eq=False)
class _Memory:
    """What moves of `network` keep for later ones: `bases` to follow, and on a GPU the captured `energy_gradient`."""

    network: ReferenceType[nn.Module] | None = None
    bases: dict[str, InputBasis] = field(default_factory=dict)
    energy_gradient: EnergyGradient | None = None


@dataclass(kw_only=True)
class NullSpace:
    """The paper's teleport: `steps` steps down the gradient energy of what is forgotten, in the null space of what is
    kept. The bases are decomposed anew at every move.

    A basis holds the share `energy` of a layer's inputs by `rule`, "energy" being squared singular values, in at most
    `k_max` directions; or it has `k` directions, as far as the layer's inputs have so many. `batch_size` and
    `forget_size` are how many examples a move looks at. A step is `eta` times the projected gradient, or `step_size`
    times ‖θ_org‖ long (0.05 if neither is given), θ_org being the probe's reference. β is `beta`, or `dispersion` times
    the ratio of the projected gradients of the two terms (0.5 if neither is given). Norms are over the weights that
    move and that inputs reach.

    `protect="both"` keeps the inputs of the forget batch too; `aim="random"` draws a direction, of the length that the
    descent would have: the control that shows what the descent adds. `batch_norm="project"` also moves batch-norm
    parameters, by the projection of channel features, which does not keep the function.
    """

    energy: float = option(0.99, "share of the inputs of every layer that is protected")
    k: int | None = option(None, "directions protected in every layer, in place of a share")
    k_max: int | None = option(None, "most directions protected in a layer")
    rule: Rule = option("energy", "what the share is of: squared singular values (energy) or singular values")
    batch_size: int = option(512, "retained examples a move looks at")
    forget_size: int = option(256, "examples to forget that a move looks at")
    steps: int = option(1, "steps of a move")
    step_size: float | None = option(
        None, "length of a step, relative to the original's weights; 0.05 unless eta is given"
    )
    eta: float | None = option(None, "the paper's step size: a step is so many times the projected gradient")
    dispersion: float | None = option(
        None, "pull away from the original, relative to the descent of the energy; 0.5 unless beta is given"
    )
    beta: float | None = option(None, "the paper's weight of the pull away from the original")
    protect: Protected = option(
        "retain", "whose layer inputs are protected: those of retained examples, or also of those to forget"
    )
    aim: Aim = option("descent", "where to: down the gradient energy, or at random")
    batch_norm: BatchNormRule = option(
        "freeze", "freeze batch-norm parameters, or project them, which does not keep the function"
    )
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        check_options(type(self).__name__, type(self), given)
        for name, other in (("eta", "step_size"), ("beta", "dispersion")):
            if given[name] is not None and given[other] is not None:
                raise InputError(
                    f"{name} is {given[name]!r} and {other} is {given[other]!r}; give one of them: {name} in absolute "
                    f"numbers, or {other}, which is relative"
                )
        for name, value in given.items():
            if name in _COUNTS and value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be a whole number of at least 1")
            if isinstance(value, float) and not isfinite(value):
                raise InputError(f"{name} is {value}; it must be a finite number")
            if name in ("eta", "step_size") and value is not None and value <= 0:
                raise InputError(f"{name} is {value}; it must be above 0")
            if name in ("beta", "dispersion") and value is not None and value < 0:
                raise InputError(f"{name} is {value}; it must be at least 0")
        if not 0 < self.energy <= 1:
            raise InputError(f"the energy to protect is {self.energy}; it must be above 0 and at most 1")
        if self.eta is None and self.step_size is None:
            self.step_size = _STEP_SIZE
        if self.beta is None and self.dispersion is None:
            self.dispersion = _DISPERSION

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: a copy remembers no network."""
        return {**vars(self), "_memory": _Memory()}

    @property
    def looks_at(self) -> Sizes:
        return Sizes(self.batch_size, self.forget_size)

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> NullMove:
        """Draw a move of `model`, which is stepped in place and put back; it leads away from the probe's reference."""
        if probe is None or not probe.retain:
            raise InputError("a null-space move needs examples that are to be kept; give retain=...")
        if probe.forget is None and (self.aim == "descent" or self.eta is not None):
            raise InputError("a null-space move goes down the gradients of examples to forget; give forget=...")
        if self._memory.network is None or self._memory.network() is not model:
            self._memory = _Memory(ref(model))
        modes = modes_of(model)
        start: dict[str, Tensor] = {}
        parameters = dict(model.named_parameters())
        try:
            set_mode(model, training=False)
            # Forward passes run on a copy, since they may change buffers; it shares the parameters to save memory.
            working = copy_with_same_parameters(model)
            inputs = [*probe.retain, probe.forget[0]] if self.protect == "both" and probe.forget else list(probe.retain)
            bases, why_unmoved, notes = self._bases(working, inputs)
            moving = {name: parameters[name] for basis in bases.values() for name in basis.names}
            start = {name: p.detach().clone() for name, p in moving.items()}
            energies = self._descend(model, moving, bases, probe, generator)
            shifts = {name: p.detach() - start[name] for name, p in moving.items()}
        finally:
            with torch.no_grad():
                for name, value in start.items():
                    parameters[name].copy_(value)
            restore_modes(modes)
        if not moving:
            notes.append("no layer could move")
        elif not any(bool(shift.any()) for shift in shifts.values()):
            notes.append("nothing moved: the projected gradient is zero")
        return NullMove(shifts, bases=bases, left=why_unmoved, forget_energies=energies, notes=tuple(notes))

    def _bases(
        self, model: nn.Module, batches: Sequence[Tensor]
    ) -> tuple[dict[str, InputBasis], dict[str, str], list[str]]:
        """Observe the inputs of all layers and decompose them. Returns the bases of the weights that may move, the
        reason for every parameter that stays, and sentences for the certificate.
        """
        weights, why_unmoved = movable_weights(model, batches[0])
        moments: dict[str, SecondMoment] = {}

        def record(weight: LinearWeight, columns: Tensor) -> None:
            """Add some inputs of a layer to its second moment."""
            if weight.name not in moments:
                moments[weight.name] = self._moment(weight)
            moments[weight.name].add(columns)

        observe(model, batches, weights, record)
        if self.batch_norm == "project":
            weights += observe_norms(model, batches, record)
        observed = {weight.name: weight for weight in weights if weight.name in moments}.values()
        why_unmoved |= {w.name: "no input of its layer was seen" for w in weights if w.name not in moments}
        _require_finite(moments)
        # A moment, which may be large, is freed before the next one is decomposed.
        decomposed = {weight.name: self._basis(weight, moments.pop(weight.name)) for weight in observed}
        null_dimensions = [basis.reached.sum() - basis.rank for basis in decomposed.values()]
        counts = torch.stack(null_dimensions).tolist() if null_dimensions else []  # All in one read.
        without_null_space = [name for name, count in zip(decomposed, counts, strict=True) if count <= 0]
        spanned = "no null space: the inputs span every direction that any input reaches"
        why_unmoved |= dict.fromkeys(without_null_space, spanned)
        bases = {name: basis for name, basis in decomposed.items() if name not in without_null_space}
        return bases, _complete_reasons(why_unmoved, model, weights, bases), self._notes(bases)

    def _notes(self, bases: Mapping[str, InputBasis]) -> list[str]:
        """Sentences for the certificate on what the bases lack: too few inputs, fewer than `k` directions."""
        notes = []
        too_few = [basis for basis in bases.values() if basis.positions < basis.d]
        if too_few:
            worst = min(too_few, key=lambda basis: basis.positions / basis.d)
            notes.append(
                f"{len(too_few)} of {len(bases)} layers saw fewer inputs than they have directions ({worst.weight}: "
                f"{worst.positions} of {worst.d}): part of their null space is only what the batch did not show; "
                "raise batch_size"
            )
        below_k = [basis for basis in bases.values() if self.k is not None and min(basis.ranks) < self.k]
        if below_k:
            worst = min(below_k, key=lambda basis: min(basis.ranks))
            notes.append(
                f"{len(below_k)} of {len(bases)} layers have fewer than k={self.k} directions in their inputs that "
                f"{worst.basis.dtype} tells apart ({worst.weight}: {min(worst.ranks)}); their bases hold all of these"
            )
        if self.batch_norm == "project":
            notes.append("batch-norm parameters were projected by channel features, which does not keep the function")
        return notes

    def _moment(self, weight: LinearWeight) -> SecondMoment:
        """An empty second moment for the inputs of a weight, as precise as the basis made of it needs."""
        exact = self.energy == 1 and self.k is None
        needs_double = exact or (self.k is None and 1 - self.energy < _SMALLEST_SHARE_IN_SINGLE)
        return SecondMoment(torch.float64 if needs_double else weight.tensor.dtype, exact=exact)

    def _basis(self, weight: LinearWeight, moment: SecondMoment) -> InputBasis:
        """The directions to keep out of: those that hold the share `energy` of the layer's inputs."""
        return InputBasis.leading(weight, moment, self.energy, k=self.k, k_max=self.k_max, rule=self.rule)

    def _descend(
        self,
        model: nn.Module,
        moving: Mapping[str, nn.Parameter],
        bases: Mapping[str, InputBasis],
        probe: Probe,
        generator: torch.Generator,
    ) -> tuple[float, float] | None:
        """Move the weights of `moving` in place, by `steps` steps. Returns the gradient energy of the forget batch
        before and after, or None without such a batch.
        """
        reference = dict(moving) if probe.reference is None else probe.reference
        origin = {name: reference[name].detach().to(p, copy=True) for name, p in moving.items()}
        relative_length = (self.step_size or 0.0) * _norm(_per_basis(InputBasis.where_reached, bases, origin))
        measure = self._energy_of(model, moving, probe)
        energies: list[float] = []
        for _ in range(self.steps):
            gradient: Values = {}
            if measure is not None:
                try:
                    per_example, gradient = measure()
                except InputError:
                    if not energies:
                        raise
                    break  # The step before went so far that losses are no numbers.
                energies.append(float(per_example.double().sum()))
            with torch.no_grad():
                direction, step_length = self._direction(moving, bases, origin, gradient, relative_length)
                if self.aim == "random":
                    direction = _random_direction(moving, bases, generator)
                length = _norm(direction)
                if length > 0:
                    for name, p in moving.items():
                        p.sub_(direction[name], alpha=step_length / length)
        if probe.forget is None:
            return None
        energy_after = total_energy(model, *probe.forget)
        return energies[0], inf if energy_after is None else energy_after

    def _energy_of(self, model: nn.Module, moving: Values, probe: Probe) -> Callable[[], tuple[Tensor, Values]] | None:
        """A function that measures the forget batch's energies and their gradient at `moving`; None without a batch."""
        if probe.forget is None:
            return None
        energy_gradient = self._memory.energy_gradient or EnergyGradient(model)
        # Kept only on a GPU: it holds the model, which is worth it for its captured graph.
        self._memory.energy_gradient = energy_gradient if probe.forget[0].is_cuda else None
        return partial(energy_gradient, *probe.forget, names=moving)

    def _direction(
        self, moving: Values, bases: Mapping[str, InputBasis], origin: Values, gradient: Values, relative_length: float
    ) -> tuple[Values, float]:
        """The projected gradient of L at the present weights, from that of the energy (empty without a forget batch),
        and the length of a step along it.
        """
        displacement = _per_basis(InputBasis.project_out, bases, {name: p - origin[name] for name, p in moving.items()})
        if not gradient:
            return {name: -value for name, value in displacement.items()}, relative_length
        descent = _per_basis(InputBasis.project_out, bases, {name: 0.5 * gradient[name] for name in moving})
        distance = _norm(displacement)
        beta = self.beta
        if beta is None:
            beta = (self.dispersion or 0.0) * _norm(descent) / distance if distance > 0 else 0.0
        direction = {name: value - beta * displacement[name] for name, value in descent.items()}
        return direction, relative_length if self.eta is None else self.eta * _norm(direction)


@dataclass(kw_only=True)
class TrackedNullSpace(NullSpace):
    """FastWARP: `NullSpace` with `rounds` times B ← orth(C B) in place of every decomposition but a network's first.

    It remembers the bases of the network that it last moved, so use one object for one network; a defence copies it.
    """

    follows_one_network: ClassVar[bool] = True
    rounds: int = option(1, "rounds of subspace iteration that follow the inputs from one move to the next")

    def _moment(self, weight: LinearWeight) -> SecondMoment:
        """An empty second moment C; where it is cheaper, one that sums up C B alone, B being the last move's basis."""
        moment = super()._moment(weight)
        previous = self._previous_basis(weight)
        if self.rounds == 1 and previous is not None:
            n, d, k = previous.positions, previous.d, previous.basis.shape[2]
            # X (Xᵀ B) takes 4ndk operations; C takes about 1.2nd², as `gram` leaves out most of one half, and C B 2d²k.
            if 4 * n * k < 1.2 * n * d + 2 * d * k:
                moment.along = previous.basis.to(moment.dtype)
        return moment

    def _basis(self, weight: LinearWeight, moment: SecondMoment) -> InputBasis:
        """The basis of the last move after `rounds` of subspace iteration; at the first move, a decomposition."""
        previous = self._previous_basis(weight)
        if previous is None:
            tracked = super()._basis(weight, moment)
        else:
            basis = previous.basis.to(moment.dtype) if moment.along is None else moment.along
            for _ in range(self.rounds):
                product = moment.times(basis)
                captured, basis = (basis * product).sum((1, 2)), orthonormal(product)
            total = moment.energy.sum(1)
            # Of the basis before the last round: a lower bound, since a round never lowers the share.
            share = float(torch.where(total > 0, captured / total, 1.0).min())
            basis, reached = basis.to(previous.basis), moment.energy > 0
            tracked = replace(previous, basis=basis, reached=reached, captured=share, positions=moment.positions)
        self._memory.bases[weight.name] = tracked
        return tracked

    def _previous_basis(self, weight: LinearWeight) -> InputBasis | None:
        """The basis at the last move; None at the first, or if the weight's bias has begun or ceased to move since."""
        previous = self._memory.bases.get(weight.name)
        return previous if previous is not None and previous.bias == weight.bias else None


def _complete_reasons(
    why_unmoved: Mapping[str, str], model: nn.Module, weights: Sequence[LinearWeight], bases: Mapping[str, InputBasis]
) -> dict[str, str]:
    """The reason for every parameter without a basis: the known one, or one for biases and other vectors."""
    biases = {weight.bias for weight in weights}
    complete = dict(why_unmoved)
    of_bias, of_vector = "the bias of a weight that stays", "one-dimensional, and no moving weight's bias"
    for name, _ in model.named_parameters():
        complete.setdefault(name, of_bias if name in biases else of_vector)
    moving = {name for basis in bases.values() for name in basis.names}
    return {name: why for name, why in complete.items() if name not in moving}


def _require_finite(moments: Mapping[str, SecondMoment]) -> None:
    """Refuse inputs that hold NaN or infinity: one of them makes the sum of their squares such a number."""
    sums = [moment.energy.isfinite().all() for moment in moments.values()]
    finite = torch.stack(sums).tolist() if sums else []
    for name, is_finite in zip(moments, finite, strict=True):
        if not is_finite:
            raise DataError(
                f"inputs of the layer of {name} hold NaN or infinity, and have no span; "
                "check the examples, and that the model's weights are finite"
            )


def _random_direction(moving: Values, bases: Mapping[str, InputBasis], generator: torch.Generator) -> dict[str, Tensor]:
    """Normal draws in the null space. They are made where the generator is, on the CPU for a secret one, and copied."""
    normal = partial(torch.randn, generator=generator, device=generator.device)
    drawn = {name: normal(p.shape).to(p) for name, p in moving.items()}
    return _per_basis(InputBasis.project_out, bases, drawn)


def _per_basis(
    change: Callable[[InputBasis, Values], Values], bases: Mapping[str, InputBasis], values: Values
) -> dict[str, Tensor]:
    """`change`, a projection of `InputBasis`, applied to each weight (with its bias) that has a basis."""
    return {name: value for basis in bases.values() for name, value in change(basis, values).items()}


def _norm(values: Values) -> float:
    """The Euclidean norm of all values as one vector."""
    return float(global_norm(list(values.values()), dtype=torch.float64)) if values else 0.0
