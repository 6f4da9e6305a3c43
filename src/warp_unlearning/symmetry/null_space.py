"""Null-space moves: weights shifted orthogonally to what enters their layers on data that is to be kept.

With B an orthonormal basis of a layer's inputs, ΔW B = 0 leaves the layer's outputs, and so the inputs of all layers
behind it, as they were: on those inputs the function is kept however long the move. A basis that holds `energy` < 1 of
the inputs' squared singular values, or inputs it has not seen, make this approximate; the certificate says by how much.

The move descends L(θ) = ½ Σᵢ ‖∇ℓᵢ(θ)‖² − (β/2) ‖θ − θ_org‖² through the projector I − BBᵀ, the sum being over a batch
of examples to forget. Units are relative, so that settings carry over between networks: steps have the length
`step_size` · ‖θ_org‖, and β is `dispersion` times the ratio of the two terms' projected gradients, so that
`dispersion` = 1 gives both the same pull. The second term has no gradient at θ_org and pulls along whatever
displacement there is; a random kick of length `kick` · ‖θ_org‖ is added to the displacement before its direction is
taken. As the term has no lower bound, ‖θ − θ_org‖ stays within `radius` · ‖θ_org‖, or where it is if it is further. All
norms are over movable weights that inputs reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import DataError, InputError, WarpError, nearest
from ..gradients.parameter_slots import copy_with_same_parameters
from ..linalg.subspace import Rule
from ..module_tree import modes_of, restore_modes, set_mode
from .forget_energy import EagerEnergy, Examples, ForgetEnergy, ReplayedEnergy, eager_energy
from .input_bases import InputBasis, exact_bases
from .linear_weights import linear_weights
from .norm_features import batch_norm_features
from .null_move import NullMove
from .null_scope import Scope, scope_of
from .null_walk import Aim, Protected, walk
from .remembered import Remembered
from .steps import RepeatedSteps
from .symmetry import Probe, Sizes

BatchNormRule = Literal["freeze", "project"]


@dataclass(kw_only=True)
class NullSpace:
    """Descent on the gradient energy of what is forgotten, in directions that what is kept does not feel.

    `energy` by `rule`, "energy" being squared singular values, decides how much of the inputs is protected;
    `batch_size` and `forget_size` are how many examples a move looks at. With `protect="both"` the bases hold the
    inputs of the forget batch too, and steps stay orthogonal to the gradient of its mean loss; with "retain", which is
    the paper's form, the descent lowers the energy in part by learning those examples again. `aim="random"` draws each
    step at random instead, the control that shows what the descent adds. `batch_norm="project"` also moves batch-norm
    parameters, by the projection of channel features, which does not keep the function. A step that would raise L, or
    the energy for the sake of distance, is halved, at most `halvings` times; a search for its length begins where the
    one before it, of the same network, ended.
    """

    energy: float = 0.99
    rule: Rule = "energy"
    batch_size: int = 2048
    forget_size: int = 256
    step_size: float = 0.05
    steps: int = 1
    dispersion: float = 0.5
    kick: float = 0.01
    radius: float = 0.5
    protect: Protected = "both"
    aim: Aim = "descent"
    batch_norm: BatchNormRule = "freeze"
    halvings: int = 4
    _remembered: Remembered = field(default_factory=Remembered, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require("energy", self.energy)
        if not 0 < self.energy <= 1:
            raise InputError(f"the energy to protect is {self.energy}; it must be above 0 and at most 1")
        for name in ("step_size", "radius"):
            _require(name, getattr(self, name), above=0)
        for name in ("dispersion", "kick"):
            _require(name, getattr(self, name), at_least=0)
        for name, least in (("batch_size", 1), ("forget_size", 1), ("steps", 1), ("halvings", 0)):
            _require_count(name, getattr(self, name), least)
        for name, kinds in (("aim", Aim), ("batch_norm", BatchNormRule), ("protect", Protected), ("rule", Rule)):
            if getattr(self, name) not in get_args(kinds):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; {nearest(str(getattr(self, name)), get_args(kinds))}"
                )

    @property
    def looks_at(self) -> Sizes:
        """How many examples a probe should hold."""
        return Sizes(self.batch_size, self.forget_size)

    def input_bases(
        self, model: nn.Module, batches: Sequence[Tensor], *, generator: torch.Generator
    ) -> dict[str, InputBasis]:
        """The bases of every layer's inputs, decomposed exactly; `model` is in eval mode."""
        bases = exact_bases(model, batches, energy=self.energy, rule=self.rule, ranks=self._remembered.ranks)
        self._remembered.ranks = {name: [block.rank for block in basis.blocks] for name, basis in bases.items()}
        return bases

    def energy_now(self, model: nn.Module, forget: Examples) -> Tensor | None:
        """Σᵢ ‖∇ℓᵢ‖² of examples to forget, float64, not read, by the graph that was captured for moves of `model`; None
        where there is none. The model is built as it was at the last move, and in eval mode.
        """
        return self._remembered.energy_now(model, *forget)

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> NullMove:
        """A move of `model` from where it stands, away from `probe.reference` (itself, if None)."""
        if probe is None or not probe.retain:
            raise InputError("a null-space move needs examples that are to be kept; give retain=...")
        forget = [] if probe.forget is None else [probe.forget[0]]
        finite = _finite([*probe.retain, *forget])
        batches = _joined([*probe.retain, *forget]) if self.protect == "both" else list(probe.retain)
        with _evaluated(model):
            # What a forward pass may change is the copy's; parameters are the model's, so that no memory is copied.
            working = copy_with_same_parameters(model)
            self._remembered.meet(model, batches[0], working=working)
            if not self._remembered.real:
                _check_real(working)
                self._remembered.real = True
            energy: ForgetEnergy = eager_energy(model, working, probe)
            if isinstance(energy, EagerEnergy):
                if not self._remembered.captured:
                    # A graph is captured of examples that are sound.
                    _require_finite(finite)
                    finite = None
                energy = self._remembered.energy(energy)
            try:
                with self._meanwhile(energy):
                    bases = self.input_bases(working, batches, generator=generator)
            except WarpError:
                _require_finite(finite)
                raise
            # Read late: a GPU has done it meanwhile, and was given other work.
            _require_finite(finite)
            features = {}
            if self.batch_norm == "project":
                features = batch_norm_features(working, batches, self.energy, self.rule)
            scope = scope_of(
                working, bases, batches[0], features, misread=self._remembered.misread(working, batches[0])
            )
            halved = self._remembered.halved
            repeated = self._walks_again()
            walked = walk(model, scope, probe, self, energy, generator=generator, halved=halved, repeated=repeated)
            self._remembered.halved = walked.halved
            self._make_ready(batches)
        notes = _notes(scope, moved=walked.moved)
        return NullMove(walked.shifts, bases=bases, left=scope.left, energies=walked.energies, notes=notes)

    def _meanwhile(self, energy: ForgetEnergy) -> AbstractContextManager[None]:
        """The block in which bases are found: what is to be done beside that."""
        if isinstance(energy, ReplayedEnergy) and self.aim == "descent":
            return energy.slopes_meanwhile()
        return nullcontext()

    def _walks_again(self) -> RepeatedSteps | None:
        """Who may have steps as captured graphs. Ranks of exact bases differ too much from move to move: nobody."""
        return None

    def _make_ready(self, batches: Sequence[Tensor]) -> None:
        """For the next move, of which nobody knows whether it comes: nothing."""


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """The model in eval mode within the block, then each module in the mode it had."""
    before = modes_of(model)
    try:
        set_mode(model, training=False)
        yield
    finally:
        restore_modes(before)


def _joined(batches: list[Tensor]) -> list[Tensor]:
    """The last batch as part of the one before, on a GPU, which is as fast with both as with one."""
    if len(batches) < 2 or not batches[-1].is_cuda:
        return batches
    *others, before, last = batches
    alike = before.shape[1:] == last.shape[1:] and before.dtype == last.dtype
    return [*others, torch.cat([before, last])] if alike else batches


def _finite(batches: Sequence[Tensor]) -> Tensor | None:
    """Whether all numbers are finite, not read; None where there is nothing to look at."""
    # The smallest and largest number are NaN where one is.
    ends = [end for x in batches if x.is_floating_point() and x.numel() for end in x.aminmax()]
    return torch.stack(ends).isfinite().all() if ends else None


def _require_finite(finite: Tensor | None) -> None:
    if finite is not None and not bool(finite):
        raise DataError("an example of the probe holds a NaN or infinite number; remove or repair it")


def _check_real(model: nn.Module) -> None:
    for weight in linear_weights(model):
        if not weight.tensor.is_floating_point():
            raise InputError(
                f"{weight.name} is {weight.tensor.dtype}; the inputs of a layer of whole numbers have no span that "
                "weights could be shifted beside. Convert the model with .float() first"
            )


def _notes(scope: Scope, *, moved: bool) -> tuple[str, ...]:
    notes = []
    few = [basis for basis in scope.bases.values() if basis.positions < basis.d]
    if few:
        worst = min(few, key=lambda basis: basis.positions / basis.d)
        notes.append(
            f"{len(few)} layers saw fewer inputs than they have directions ({worst.weight}: {worst.positions} of "
            f"{worst.d}): part of their null space is only what the batch did not show; raise batch_size"
        )
    if scope.features:
        notes.append("batch-norm parameters were projected by channel features, which does not keep the function")
    if not scope.names:
        notes.append("no layer could move")
    elif not moved:
        notes.append("nothing moved: no step was found that stays within the radius and lowers the loss")
    return tuple(notes)


def _require(name: str, value: float, *, above: float | None = None, at_least: float | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InputError(f"{name} is {value!r}; it must be a finite number")
    if above is not None and not value > above:
        raise InputError(f"{name} is {value}; it must be above {above}")
    if at_least is not None and not value >= at_least:
        raise InputError(f"{name} is {value}; it must be at least {at_least}")


def _require_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")
