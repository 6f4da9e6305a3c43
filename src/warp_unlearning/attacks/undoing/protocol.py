"""What an attacker who undoes a defence holds, and what a pre-step is.

A two-model attack reads the difference θ_u − θ_org. A defence moves θ_u so that the difference points elsewhere; a
pre-step maps θ_u to weights in the original's coordinates, from which as much of that move as it can find is removed.
Whatever attack takes an original and an unlearned model takes the original and the undone one.
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
T = TypeVar("T")


class NotApplicable(InputError):
    """A pre-step that a network gives no hold to, or to whose settings the defence does; the message says why."""


@dataclass(frozen=True, eq=False)
class Held:
    """What the attacker holds beforehand: the original model, and examples (x, y) drawn as its training data were.

    `model` is the original as every pre-step sees it: a copy in eval mode, all of its parameters trainable. The probes
    are brought to its device and precision. What several pre-steps need is computed once, by `once`.
    """

    original: nn.Module
    probes: tuple[Tensor, Tensor]
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

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
        """The original in eval mode, every floating-point parameter trainable."""
        model = deepcopy(self.original).eval()
        for p in model.parameters():
            p.requires_grad_(p.is_floating_point())
        return model

    @cached_property
    def device(self) -> torch.device:
        """Where the original is."""
        return next(self.model.parameters()).device

    @cached_property
    def x(self) -> Tensor:
        """Inputs of the probes, as the model takes them."""
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
        """What `make` finds out about this original; it is asked the first time alone."""
        if make not in self._found:
            self._found[make] = make(self)
        found: T = self._found[make]
        return found

    def prepared(self, step: PreStep) -> Undo:
        """The step prepared for this original; equal steps are one."""
        if not isinstance(step, Hashable):
            return step.prepared(self)
        if step not in self._found:
            self._found[step] = step.prepared(self)
        found: Undo = self._found[step]
        return found


class Undo(Protocol):
    """A pre-step prepared for one original."""

    def __call__(self, unlearned: Weights) -> dict[str, Tensor]:
        """From a state dict of the unlearned model, the state in the original's coordinates: the original plus the
        cleaned difference. It holds every floating-point entry, running statistics too, in float64 on the original's
        device.
        """


class PreStep(Protocol):
    """A way to undo a defence, before any attack that takes two models."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def prepared(self, held: Held) -> Undo:
        """Do what is done once for an original: trace it, decompose its layers' inputs, take probe gradients.

        Raises `NotApplicable` where the network gives the step nothing to work on.
        """


class NamedStep:
    """A pre-step whose name belongs to its class."""

    step_name: ClassVar[str]

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.step_name
