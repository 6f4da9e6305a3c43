"""The threat model: what an attacker who rebuilds forgotten images holds. An attack is given nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import DataError, InputError
from ...models.generator import Staged
from ..membership.base import are_identical, check_pair
from ..undo.base import Held


@dataclass(frozen=True)
class Schedule:
    """The updates of the unlearning, as far as the attacker knows them: `steps` plain gradient steps
    θ ← θ + `rate` · `ascent` · g_forget; `rate` may be one for each step.
    """

    steps: int
    rate: float | tuple[float, ...]
    ascent: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or len(self.rates) != self.steps:
            raise InputError(f"the schedule has {self.steps} steps and {len(self.rates)} rates; give a rate for each")
        if not min(self.rates) > 0 or not self.ascent > 0:
            raise InputError(
                f"the schedule has the least rate {min(self.rates)} and ascent {self.ascent}; give positive rates and "
                "a positive ascent"
            )

    @property
    def rates(self) -> tuple[float, ...]:
        """The rate of every step."""
        return self.rate if isinstance(self.rate, tuple) else (self.rate,) * self.steps

    @property
    def length(self) -> float:
        """The factor of the forget gradient over all steps."""
        return sum(self.rates) * self.ascent


@dataclass(frozen=True, eq=False)
class Threat:
    """One pair of models and what the attacker knows of it.

    `count` examples were forgotten together; `labels`, shape (count,), are theirs, or None where the attacker must
    infer them. `ascent` says whether the method raised their loss, so that the difference points along their gradient,
    or lowered one under other labels, which are then those meant. `probes` are inputs and labels drawn as the training
    data were, and `generator` is an image prior made from such data. `method`, `settings` and `schedule` say what is
    known of the unlearning; `defense` names the family of defences that the attacker expects, "none" for no defence
    and None for an unknown one, never what a defence drew.
    """

    original: nn.Module
    unlearned: nn.Module
    pixels: Pixels
    labels: Tensor | None = None
    count: int = 1
    ascent: bool = True
    probes: tuple[Tensor, Tensor] | None = None
    generator: Staged | None = None
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None
    defense: str | None = None

    def __post_init__(self) -> None:
        check_pair(self.original, self.unlearned)
        if are_identical(self.original, self.unlearned):
            raise InputError("the two models are identical: there is no difference to attack")
        for what, model in (("original", self.original), ("unlearned", self.unlearned)):
            for name, value in model.state_dict().items():
                if value.is_floating_point() and not bool(value.isfinite().all()):
                    raise InputError(f"{name!r} of the {what} model holds NaN or infinity; its training diverged")
        if self.count < 1:
            raise InputError(f"{self.count} examples were forgotten; give at least 1")
        if self.generator is not None and not isinstance(self.generator, Staged):
            raise InputError(
                f"the generator is a {type(self.generator).__name__} without stages; make one of your modules by "
                "StageList"
            )
        if self.probes is not None and tuple(self.probes[0].shape[1:]) != self.pixels.shape:
            raise DataError(
                f"a probe has shape {tuple(self.probes[0].shape[1:])} and images {self.pixels.shape}; "
                "give probes as the model takes them"
            )
        if self.labels is not None:
            _check_labels(self.labels, self.count)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(self.original.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the models."""
        return next(self.original.parameters()).dtype

    @cached_property
    def held(self) -> Held:
        """The original and the probes, as pre-steps take them."""
        if self.probes is None:
            raise InputError("this attack needs probes, examples drawn as the training data were; give probes=(x, y)")
        return Held(self.original, self.probes)

    def blank(self, count: int = 1) -> Tensor:
        """Inputs of zeros (count, channels, height, width), to find out how the network is built."""
        return torch.zeros(count, *self.pixels.shape, device=self.device, dtype=self.dtype)

    def lines(self) -> tuple[str, ...]:
        """What the attacker holds, in sentences."""
        what = "its label" if self.count == 1 else "their labels"
        forgotten = "one forgotten example" if self.count == 1 else f"{self.count} examples forgotten together"
        probes = "no probe data"
        if self.probes is not None:
            probes = f"{len(self.probes[1])} probe examples drawn as the training data were"
        generator = "no generator of images"
        if self.generator is not None:
            generator = "a generator of images, made from data of the same kind"
        return (
            "The attacker holds the weights before and after the unlearning, and the architecture.",
            f"The attacker rebuilds {forgotten} and {'infers' if self.labels is None else 'is told'} {what}.",
            f"The attacker holds {probes}.",
            f"The attacker has {generator}.",
            self._known_method(),
            "The attacker does not know what a defence drew at random.",
        )

    def _known_method(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        known = f"The attacker knows the unlearning as {self.method or 'an unknown method'}"
        known += f" ({settings})" if settings else ""
        if self.schedule is not None:
            plan, rates = self.schedule, self.schedule.rates
            size = f"{rates[0]:g}" if min(rates) == max(rates) else f"{rates[0]:g} to {rates[-1]:g}"
            known += f", {plan.steps} step{'s' if plan.steps > 1 else ''} of {size}"
            known += f" with weight {plan.ascent:g} on what is forgotten"
        if self.defense is None:
            return known + ", and does not know whether there was a defence."
        if self.defense == "none":
            return known + ", and that there was no defence."
        return known + f", and expects the defence {self.defense}."


def _check_labels(labels: object, count: int) -> None:
    if not isinstance(labels, Tensor):
        raise DataError(f"labels are a {type(labels).__name__}; give a tensor of {count} numbers")
    if labels.shape != (count,):
        raise DataError(f"labels have shape {tuple(labels.shape)} for {count} forgotten examples; give one for each")
    if labels.is_floating_point() or labels.is_complex():
        raise DataError(f"labels have type {labels.dtype}; give the numbers of classes")
