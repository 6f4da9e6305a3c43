"""`warp teleport`: move a model along symmetries, and certify that its function was kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options as given
from .options import Options, request_flags, takes_options
from .show import finish

if TYPE_CHECKING:
    from torch import nn

    from ..defense.certificate import Certificate
    from ..report.schema import Teleport as Results
    from ..symmetry.base import Symmetry

# Of the largest logit: what rounding does to a change of basis of a deep network, with room to spare.
EXACT = {"float32": 1e-4, "float64": 1e-10}
_SYMMETRY = "One or several: null_space, tracked_null_space, change_of_basis, permutation, attention_basis."
_TOLERANCE = "Change of the retain loss that a null-space move may make."


@takes_options
def teleport(
    source: given.Model,
    symmetry: Annotated[list[str], typer.Option(help=_SYMMETRY)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the result.")],
    *,
    forget: given.ForgetFile = None,
    forget_class: given.ForgetClass = None,
    column: given.Column = None,
    by: given.By = None,
    tolerance: Annotated[float, typer.Option(help=_TOLERANCE)] = 0.01,
    defense_seed: given.DefenseSeed = None,
    options: Options,
    as_json: given.Json = False,
) -> None:
    """Move a model's weights along symmetries that keep its function, and certify that they did.

    Options of the symmetry go by -o too, as in -o spread=0.5. Exit code 1: the function was not kept. Exact symmetries
    may change a logit by 1e-4 of the largest in float32 and 1e-10 in float64, others the retain loss by the tolerance.
    """
    import numpy as np

    from ..data.files import array_digest, to_json
    from ..defense.teleporter import teleport as move_model
    from ..errors import DataError, InputError
    from ..models.weights import model_digest
    from ..report.schema import Teleport
    from ..symmetry.base import settings_of
    from .request import requested_rows
    from .subject import open_subject, save_subject

    if not tolerance >= 0:
        raise InputError(f"the tolerance is {tolerance}; it must be at least 0")
    moving, settings = _choose_symmetry(symmetry, options.override or ())
    flags = request_flags(forget, forget_class, column, by)
    subject = open_subject(source, replace(options, override=settings), **flags)
    if subject.stored is not None:
        kind = str(subject.stored).removeprefix("torch.")
        raise InputError(
            f"the weights are {kind}, and rounding a moved network to that changes its function; save it in the type "
            "that you compute in first"
        )
    # What is to be forgotten, else what earlier requests forgot, else nothing; all else that the model knows is kept.
    ask, gone, notes = subject.config.forget, subject.forgotten, list[str]()
    if ask.rows is not None or ask.label is not None or ask.fraction is not None:
        gone = requested_rows(subject).rows
    elif len(gone):
        notes.append(f"the rows to forget are the {len(gone)} that this model was asked to forget")
    retain = np.setdiff1d(subject.known, gone)
    if not len(retain):
        raise DataError("every row is to be forgotten; leave some to keep")
    start = partial(
        subject.start_run,
        out,
        kind="teleport",
        symmetries=[{"name": type(part).__name__, "options": settings_of(part)} for part in _parts(moving)],
        tolerance=tolerance,
        defense_seed=defense_seed,
        forget=array_digest(subject.parts.digests[gone]),
    )
    run = start() if out.exists() else None
    if run is None or not run.complete:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            moved, certificate = move_model(
                subject.model.to(subject.device),
                moving,
                retain=subject.examples(retain),
                forget=subject.examples(gone) if len(gone) else None,
                seed=defense_seed,
            )
        before, after = model_digest(subject.model), model_digest(moved)
        notes += ["nothing moved: the result is bit-identical"] * (before == after)
        notes += [*certificate.notes, *(str(warning.message) for warning in caught)]
        what, measured, bound = _measured(certificate, moving, moved, tolerance)
        results = Teleport(
            outcome="holds" if measured <= bound else "does not hold",
            what=what,
            measured=measured if isfinite(measured) else None,
            bound=bound,
            experiment_only=defense_seed is not None,
            original=before,
            teleported=after,
            certificate=to_json(certificate.as_json()),
            notes=tuple(dict.fromkeys(notes)),
        )
        # A network that cannot be moved leaves no folder, so that the next try may use its name.
        run = start()
        save_subject(run, subject, moved, parts=subject.parts)
        run.write_json("results.json", results.model_dump(mode="json"))
        run.finish()
    results = run.results(Teleport)
    plain = results.model_dump(mode="json") if as_json else None
    finish(_lines(results, " then ".join(symmetry)), results=plain, exit_code=int(results.outcome != "holds"), out=out)


def _choose_symmetry(names: Sequence[str], overrides: Sequence[str]) -> tuple[Symmetry, list[str]]:
    from ..config import Config, parse_override
    from ..errors import InputError, nearest
    from ..symmetry.base import Compose, make_symmetry, symmetry_options

    known = {name: {option.name for option in symmetry_options(name)} for name in names}
    own: dict[str, dict[str, Any]] = {name: {} for name in names}
    shared: dict[str, Any] = {}
    settings: list[str] = []
    for override in overrides:
        ((key, value),) = parse_override(override).items()
        if key in Config.model_fields:
            settings.append(override)
        elif key in own and isinstance(value, Mapping):
            own[key] |= value
        elif any(key in options for options in known.values()):
            shared[key] = value
        else:
            every = {option for options in known.values() for option in options}
            raise InputError(f"{' and '.join(names)}: there is no option {key!r}; {nearest(key, every)}")
    for name, options in known.items():
        own[name] = {key: value for key, value in shared.items() if key in options} | own[name]
    symmetries = [make_symmetry(name, **own[name]) for name in names]
    return symmetries[0] if len(symmetries) == 1 else Compose(*symmetries), settings


def _parts(symmetry: Symmetry) -> Sequence[Symmetry]:
    return getattr(symmetry, "symmetries", (symmetry,))


def _measured(
    certificate: Certificate, symmetry: Symmetry, model: nn.Module, tolerance: float
) -> tuple[str, float, float]:
    from ..symmetry.null_space import NullSpace

    drifts = [drift for drift in (certificate.retain, certificate.held_out) if drift is not None]
    if any(isinstance(part, NullSpace) for part in _parts(symmetry)):
        return "change of the mean loss of retained rows", max(abs(d.loss_change) for d in drifts), tolerance
    double = {str(p.dtype) for p in model.parameters() if p.is_floating_point()} == {"torch.float64"}
    what, bound = "largest logit change, relative to the largest logit", EXACT["float64" if double else "float32"]
    return what, max(drift.relative for drift in drifts), bound


def _lines(results: Results, name: str) -> list[str]:
    found = results.certificate
    moved = sum(bool(layer["moved"] or layer["moved_unreached"]) for layer in found["layers"])
    share, seconds = found["relative_move"], found["seconds"]
    lines = [f"{name} moved {moved} tensors by {share:.3g} of the length of the weights, in {seconds:.1f} s"]
    if found["moved_unreached"]:
        lines.append(f"  and by {found['moved_unreached']:.3g} where no input reaches, which hides nothing")
    for what in ("retain", "held_out", "forget"):
        if found[what] is not None:
            before, after = found[what]["loss_before"], found[what]["loss_after"]
            lines.append(f"  loss on {what.replace('_', ' '):<10}{before:.4g} -> {after:.4g}")
    if found["energy_before"] is not None and found["energy_after"] is not None:
        lines.append(f"  forget gradient energy {found['energy_before']:.4g} -> {found['energy_after']:.4g}")
    still: dict[str, dict[str, None]] = {}
    for pin in found["pinned"]:
        for reason in pin["reasons"]:
            still.setdefault(f"pinned by {reason}", {})[f"{pin['tensor']} ({pin['count']} channels)"] = None
    for tensor, reason in found["left"].items():
        still.setdefault(f"left, {reason}", {})[tensor] = None
    for why, tensors in still.items():
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        lines.append(f"  {why}: {', '.join(list(tensors)[:3])}{more}")
    lines += [f"note: {note}" for note in results.notes]
    if results.experiment_only:
        lines.append("experiment only: whoever knows the seed can undo this move")
    measured = "not finite" if results.measured is None else f"{results.measured:.2g}"
    return [*lines, f"{results.outcome}: {results.what} {measured}, at most {results.bound:.2g} allowed"]
