"""The threat model: what an attacker who rebuilds forgotten images holds, and what a deletion record tells them.

An attack is given nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...data.sampling import batch_shape
from ...errors import DataError, InputError
from ...methods.langevin import Langevin
from ...models.generator import Staged
from ...training.update import cosine
from ...unlearning.record import Deletion
from ..membership.base import are_identical, check_pair
from ..undo.base import Held

# Methods whose steps go up the loss of the forgotten examples under their own labels, whatever else they do.
_RAISING = ("ngp", "srf_on", "pgu", "langevin")
_MADE_FOR = "the attacks are made for methods that raise the loss of the forgotten examples"


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


@dataclass(frozen=True)
class KnownUnlearning:
    """What an attacker knows of an unlearning. `defense` is its name, "none" where there was none and None where nobody
    says; `ascent` and `schedule` are as a `Threat` has them; `own_labels` is False where the method lowered the loss
    under labels that it drew. `notes` say what the attack cannot know or was not made for.
    """

    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    defense: str | None = None
    ascent: bool = True
    own_labels: bool = True
    schedule: Schedule | None = None
    notes: tuple[str, ...] = ()


def known_unlearning(last: Deletion, *, defense: str | None) -> KnownUnlearning:
    """What the record of an unlearning tells."""
    name, settings = str(last.method.get("name")), dict(last.method.get("options") or {})
    schedule, notes = schedule_of(name, settings, retained=last.retained, forgotten=last.requested)
    if name == "salun":
        notes += (f"{_MADE_FOR}; salun lowers it under random labels, which the attacker infers instead",)
    elif name == "langevin" and not float(settings.get("alpha", Langevin.alpha)) < 1:
        notes += (f"{_MADE_FOR}; langevin with alpha=1 never looks at them",)
    elif name not in _RAISING:
        made = f"{_MADE_FOR} ({', '.join(_RAISING)})"
        notes += (f"{made}, and {name} is none of them: that an attack fails here says little",)
    elif settings.get("norm_mode") == "train" and last.requested > 1:
        notes += ("batch norms used the statistics of the batch, if there are any; the attack takes running ones",)
    own = name != "salun"
    return KnownUnlearning(name, settings, defense, ascent=own, own_labels=own, schedule=schedule, notes=notes)


def schedule_of(
    name: str, settings: Mapping[str, Any], *, retained: int, forgotten: int
) -> tuple[Schedule | None, tuple[str, ...]]:
    """The steps of a method with these settings, or None; and notes on what they leave out.

    NegGrad+ takes plain steps, θ ← θ − η(α g_retain − (1 − α) g_forget), where nothing but the two losses moves the
    weights and momentum is 0 or there is one step.
    """
    if name != "ngp":
        return None, (f"no schedule of the steps of {name} is known to the attacker",)
    steps = int(settings["epochs"]) * batch_shape(retained, int(settings["batch_size"]))[0]
    rest = [key for key in ("weight_decay", "max_norm", "saturate") if settings.get(key)]
    if steps > 1:
        rest += [key for key in ("momentum", "anchor") if settings.get(key)]
    alpha = float(settings["alpha"])
    if not alpha < 1:
        return None, ("with alpha=1 ngp never looks at the forgotten examples",)
    if rest:
        return None, (f"the steps are not plain gradient steps ({', '.join(rest)}), so no schedule is assumed",)
    few = forgotten > int(settings["batch_size"])
    notes = (
        (f"a step saw only some of the {forgotten} forgotten examples; the attack takes all of them",) if few else ()
    )
    rates = tuple(float(settings["lr"]) * cosine(i / steps) for i in range(steps))
    return Schedule(steps=steps, rate=rates, ascent=1 - alpha), notes


def _check_labels(labels: object, count: int) -> None:
    if not isinstance(labels, Tensor):
        raise DataError(f"labels are a {type(labels).__name__}; give a tensor of {count} numbers")
    if labels.shape != (count,):
        raise DataError(f"labels have shape {tuple(labels.shape)} for {count} forgotten examples; give one for each")
    if labels.is_floating_point() or labels.is_complex():
        raise DataError(f"labels have type {labels.dtype}; give the numbers of classes")
