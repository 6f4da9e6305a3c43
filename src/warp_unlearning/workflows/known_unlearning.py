"""What an attacker knows of an unlearning from its record: the method, its steps, and which gradient it followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..attacks.reconstruction.threat import Schedule
from ..cli.subject import Subject
from ..data.sampling import batch_shape
from ..errors import InputError
from ..methods.langevin import Langevin
from ..runs.directory import RunDirectory
from ..training.update import cosine
from ..unlearning.record import Deletion

# Methods whose steps go up the loss of the forgotten examples under their own labels, whatever else they do.
_RAISING = ("ngp", "srf_on", "pgu", "langevin")
_MADE_FOR = (
    "the attacks are made for methods that raise the loss of the forgotten examples (ngp, srf_on, pgu, langevin)"
)


@dataclass(frozen=True)
class KnownUnlearning:
    """`defense` is the name of the defence, "none" where there was none and None where nobody says. `ascent` and
    `schedule` are as a `Threat` has them; `own_labels` is False where the method lowered the loss under labels that it
    drew, so that the true ones are of no use. `notes` say what the attack cannot know or was not made for.
    """

    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    defense: str | None = None
    ascent: bool = True
    own_labels: bool = True
    schedule: Schedule | None = None
    notes: tuple[str, ...] = ()


def known_unlearning(path: Path, source: Subject, *, original: str) -> KnownUnlearning:
    """What the run at `path` tells, whose unlearning must start from the model with the digest `original`; nothing for
    a weight file.
    """
    if source.path is None or source.kind == "file" or not source.record.deletions:
        return KnownUnlearning(
            notes=("nothing says how this model was unlearned: the attacker knows no method, schedule or defence",)
        )
    last = source.record.deletions[-1]
    if last.original != original:
        raise InputError(
            f"{path} was unlearned from another model ({last.original[:12]}) than the one before ({original[:12]}); "
            "give the model that its request started from"
        )
    name, settings = str(last.method.get("name")), dict(last.method.get("options") or {})
    schedule, why = schedule_of(name, settings, retained=last.retained, forgotten=last.requested)
    return KnownUnlearning(
        method=name,
        settings=settings,
        defense=_defense(source.path, last),
        ascent=name != "salun",
        own_labels=name != "salun",
        schedule=schedule,
        notes=(*why, *_method_notes(name, settings, last)),
    )


def schedule_of(
    name: str, settings: Mapping[str, Any], *, retained: int, forgotten: int
) -> tuple[Schedule | None, tuple[str, ...]]:
    """The steps of a method with these settings, or None; and notes on what they leave out.

    A schedule is of plain steps. NegGrad+ takes such steps, θ ← θ − η(α g_retain − (1 − α) g_forget), where
    nothing but the two losses moves the weights and momentum is 0 or there is one step.
    """
    if name != "ngp":
        return None, (f"no schedule of the steps of {name} is known to the attacker",)
    steps = int(settings["epochs"]) * batch_shape(retained, int(settings["batch_size"]))[0]
    rest = [key for key in ("weight_decay", "max_norm", "saturate") if settings.get(key)]
    if steps > 1:
        rest += [key for key in ("momentum", "anchor") if settings.get(key)]
    if not float(settings["alpha"]) < 1:
        return None, ("with alpha=1 ngp never looks at the forgotten examples",)
    if rest:
        return None, (f"the steps are not plain gradient steps ({', '.join(rest)}), so no schedule is assumed",)
    notes = []
    if forgotten > int(settings["batch_size"]):
        notes.append(f"a step saw only some of the {forgotten} forgotten examples; the attack takes all of them")
    rates = tuple(float(settings["lr"]) * cosine(i / steps) for i in range(steps))
    alpha = float(settings["alpha"])
    return Schedule(steps=steps, rate=rates, ascent=1 - alpha), tuple(notes)


def _defense(path: Path, last: Deletion) -> str | None:
    """The name that the run was started with; None where the record has a defence and the run no name of it."""
    if last.defense is None:
        return "none"
    section = RunDirectory(path, "unlearn").config().get("defense")
    name = section.get("name") if isinstance(section, dict) else None
    return str(name) if name is not None else None


def _method_notes(name: str, settings: Mapping[str, Any], last: Deletion) -> tuple[str, ...]:
    if name == "salun":
        return (
            f"{_MADE_FOR}; salun lowers it under random labels, which the attacker infers instead of the true ones",
        )
    if name == "langevin" and not float(settings.get("alpha", Langevin.alpha)) < 1:
        return (f"{_MADE_FOR}; langevin with alpha=1 never looks at them",)
    if name not in _RAISING:
        return (f"{_MADE_FOR}, and {name} is none of them: that an attack fails here says little",)
    if settings.get("norm_mode") == "train" and last.requested > 1:
        return ("batch norms, where there are any, used the statistics of the batch; the attack takes running ones",)
    return ()
