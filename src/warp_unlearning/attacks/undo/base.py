"""What an attacker who undoes a defence holds, what a pre-step is, and states of the two models.

An attack on two models reads the difference θ_u − θ_org. A defence moves θ_u so that the difference points elsewhere. A
pre-step maps θ_u to weights in the original's coordinates, with as much of the move removed as it can find. Any attack
on an original and an unlearned model then works on the original and the undone one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ...errors import DataError, InputError

Weights = Mapping[str, Tensor]
# A pre-step prepared for one original: from a state dict of the unlearned model to every floating-point entry in the
# original's coordinates, the original plus the cleaned difference, in float64 on the original's device.
Undo = Callable[[Weights], dict[str, Tensor]]
T = TypeVar("T")


class NotApplicable(InputError):
    """A pre-step cannot work on this network or these settings; the message says why."""


class PreStep(Hashable, Protocol):
    """A way to undo a defence before an attack on two models."""

    @property
    def name(self) -> str:
        """The name in tables."""

    def prepared(self, held: Held) -> Undo:
        """Do the work that depends on the original alone; raises `NotApplicable` where the step has nothing to use."""


@dataclass(frozen=True, eq=False)
class Held:
    """What the attacker holds beforehand: the original model, and examples (x, y) drawn as its training data were."""

    original: nn.Module
    probes: tuple[Tensor, Tensor]
    _found: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        x, y = self.probes
        if len(x) == 0 or len(x) != len(y):
            raise DataError(f"the probes are {len(x)} inputs and {len(y)} labels; give as many of both, at least one")
        if x.is_floating_point() and not bool(x.isfinite().all()):
            raise DataError("the probes hold NaN or infinity; remove or repair those examples")
        if not any(p.is_floating_point() for p in self.original.parameters()):
            raise InputError(f"{type(self.original).__name__} has no floating-point parameters; there is no difference")

    @cached_property
    def model(self) -> nn.Module:
        """A copy of the original in eval mode, every floating-point parameter trainable."""
        return trainable_copy(self.original)

    @cached_property
    def device(self) -> torch.device:
        """The device of the original."""
        return next(self.model.parameters()).device

    @cached_property
    def x(self) -> Tensor:
        """Inputs of the probes, on the device and in the precision of the model."""
        x, kind = self.probes[0], next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        return x.to(device=self.device, dtype=kind if x.is_floating_point() else x.dtype)

    @cached_property
    def y(self) -> Tensor:
        """Labels of the probes."""
        return self.probes[1].to(self.device)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Every floating-point entry of the state dict in float64, by name."""
        state = self.model.state_dict()
        return {name: value.detach().double() for name, value in state.items() if value.is_floating_point()}

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the floating-point parameters; a shared one has its first name."""
        return tuple(name for name, p in self.model.named_parameters() if p.is_floating_point())

    def once(self, make: Callable[[Held], T]) -> T:
        """`make(self)`, computed the first time and kept."""
        return once(self._found, make, lambda: make(self))

    def prepared(self, step: PreStep) -> Undo:
        """The step prepared for this original; equal steps share one."""
        return once(self._found, step, lambda: step.prepared(self))


class CachedState(dict[str, Tensor]):
    """A state dict that keeps what pre-steps compute from it. Its tensors must not be written to."""

    def __init__(self, state: Weights) -> None:
        super().__init__(state)
        self._found: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, computed the first time that `key` is used and kept."""
        return once(self._found, key, make)

    def after(self, undo: Undo) -> CachedState:
        """The state that a prepared pre-step makes of this one."""
        return self.once(("after", undo), lambda: CachedState(undo(self)))

    def shares_all(self, other: Weights) -> bool:
        """Whether both hold the same tensor objects, so that nothing moved between them; their numbers are not read."""
        return self.keys() == other.keys() and all(self[name] is other[name] for name in self)


def cached(state: Weights) -> CachedState:
    """The state itself where it is a `CachedState`, else a new one."""
    return state if isinstance(state, CachedState) else CachedState(state)


def trainable_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode, every floating-point parameter trainable."""
    copy = deepcopy(model).eval()
    for p in copy.parameters():
        p.requires_grad_(p.is_floating_point())
    return copy


def difference(original: nn.Module, state: Weights) -> dict[str, Tensor]:
    """θ − θ_org of every floating-point parameter, in float64 on the original's device; `state` may hold more."""
    own = {name: p for name, p in original.named_parameters() if p.is_floating_point()}
    return {name: value - own[name].detach().double() for name, value in _fitting(own, state).items()}


def undone_model(original: nn.Module, state: Weights) -> nn.Module:
    """A copy of the original with the entries of `state`, in its own precision and mode."""
    model = deepcopy(original)
    own = model.state_dict()
    unknown = sorted(set(state) - set(own))
    if unknown:
        raise InputError(f"{unknown[0]!r} is no entry of {type(original).__name__}; give a state of that network")
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)
    return model


def checked_state(held: Held, state: Weights) -> dict[str, Tensor]:
    """Every floating-point entry of the original's state dict, taken from `state`, in float64 on its device."""
    return dict(cached(state).once(("checked", held), lambda: _fitting(held.weights, state)))


def with_shared_names(held: Held, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`state` with the value of the first name for all names of a shared tensor."""
    first: dict[int, str] = {}
    for name, value in held.model.state_dict(keep_vars=True).items():
        if name in state:
            state[name] = state[first.setdefault(id(value), name)]
    return state


def cleaning(held: Held, clean: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Undo:
    """An undo by `clean`, which takes the difference of all parameters and returns those that it changes.

    Other entries stay as the unlearned model has them.
    """

    def undo(unlearned: Weights) -> dict[str, Tensor]:
        state = checked_state(held, unlearned)
        cleaned = clean({name: state[name] - held.weights[name] for name in held.parameters})
        return with_shared_names(held, state | {name: held.weights[name] + value for name, value in cleaned.items()})

    return undo


def at_length_of(cleaned: dict[str, Tensor], given: Weights) -> dict[str, Tensor]:
    """The cleaned difference at the length of the given one, for steps that know directions alone."""
    before, after = (torch.stack([v.square().sum() for v in w.values()]).sum().sqrt() for w in (given, cleaned))
    factor = torch.where(after > 0, before / torch.where(after > 0, after, 1.0), 0.0)
    return {name: factor * value for name, value in cleaned.items()}


@dataclass(frozen=True)
class Naive:
    """Undo nothing: the unlearned weights as they are."""

    name: ClassVar[str] = "naive"

    def prepared(self, held: Held) -> Undo:
        """Nothing to prepare."""
        return cleaning(held, lambda delta: {})


@dataclass(frozen=True)
class Chain:
    """The first step, then the second on its result."""

    first: PreStep
    second: PreStep

    @property
    def name(self) -> str:
        """Both names, as "canonical+span"."""
        return f"{self.first.name}+{self.second.name}"

    def prepared(self, held: Held) -> Undo:
        """Return the undo that applies the first step and then the second."""
        first, second = held.prepared(self.first), held.prepared(self.second)

        def undo(unlearned: Weights) -> dict[str, Tensor]:
            given = cached(unlearned)
            between = given.after(first)
            # Where the first step changed nothing, the result of the second alone is what `given` may have kept.
            start = given if between.shares_all(checked_state(held, given)) else between
            return dict(start.after(second))

        return undo


def once(found: dict[Hashable, Any], key: Hashable, make: Callable[[], T]) -> T:
    """What `found` holds at `key`; `make()`, which it then holds, the first time."""
    if key not in found:
        found[key] = make()
    kept: T = found[key]
    return kept


def _fitting(own: Weights, state: Weights) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, origin in own.items():
        if name not in state:
            raise InputError(f"the unlearned state lacks {name!r}; give the whole state dict of the same network")
        value = state[name]
        if value.shape != origin.shape:
            raise InputError(
                f"{name!r} has shape {tuple(value.shape)} in the unlearned state and {tuple(origin.shape)} in the "
                "original; give two states of one network"
            )
        found[name] = value.detach().to(device=origin.device, dtype=torch.float64)
    finite = torch.stack([value.isfinite().all() for value in found.values()]).tolist() if found else []
    for name, fine in zip(found, finite, strict=True):
        if not fine:
            raise InputError(f"{name!r} of the unlearned state holds NaN or infinity; the unlearning diverged")
    return found
