"""`warp teleport`: move a model along symmetries, and certify that its function was kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import By, Column, ForgetClass, ForgetFile, Json, Options, prepare, request_flags, takes_options
from .show import finish, print_json

if TYPE_CHECKING:
    from torch import nn

    from ..data.table import Index
    from ..defense.certificate import Certificate
    from ..report.schema import Teleport as Results
    from ..symmetry.base import Symmetry
    from .subject import Subject

# Of the largest logit: what rounding does to a change of basis of a deep network, with room to spare.
EXACT = {"float32": 1e-4, "float64": 1e-10}


@takes_options
def teleport(
    source: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A run of check, train or unlearn, or a weight file.")
    ],
    symmetry: Annotated[
        list[str],
        typer.Option(
            help="One or several: null_space, tracked_null_space, change_of_basis, permutation, attention_basis."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the result.")],
    *,
    forget: ForgetFile = None,
    forget_class: ForgetClass = None,
    column: Column = None,
    by: By = None,
    tolerance: Annotated[float, typer.Option(help="Change of the retain loss that a null-space move may make.")] = 0.01,
    defense_seed: Annotated[
        int | None, typer.Option(min=0, help="For experiments only: whoever knows it can undo the move.")
    ] = None,
    options: Options,
    as_json: Json = False,
) -> None:
    """Move a model's weights along symmetries that keep its function, and certify that they did.

    Options of the symmetry go by -o too, as in -o spread=0.5. Exit code 1: the function was not kept. Exact symmetries
    may change a logit by 1e-4 of the largest in float32 and 1e-10 in float64, others the retain loss by the tolerance.
    """
    from math import isfinite

    from ..config import RESOLVED, Config, as_plain, parse_override
    from ..data.files import array_digest, to_json
    from ..defense.teleporter import teleport as move_model
    from ..errors import InputError
    from ..models.weights import model_digest
    from ..report.schema import Teleport
    from ..runs.directory import start_run
    from ..symmetry.base import settings_of
    from .subject import PLACES, open_subject, save_subject

    if not tolerance >= 0:
        raise InputError(f"the tolerance is {tolerance}; it must be at least 0")
    prepare(options.threads)
    settings: list[str] = []
    given: dict[str, Any] = {}
    for setting in options.override or []:
        for key, value in parse_override(setting).items():
            if key in Config.model_fields:
                settings.append(setting)
            else:
                both = isinstance(value, dict) and isinstance(given.get(key), dict)
                given[key] = given[key] | value if both else value
    moving = _choose_symmetry(symmetry, given)
    flags = request_flags(forget, forget_class, column, by)
    subject = open_subject(source, replace(options, override=settings), flags=flags)
    if subject.stored is not None:
        raise InputError(
            f"the weights are {str(subject.stored).removeprefix('torch.')}, and rounding a moved network to that "
            "changes its function; save it in the type that you compute in first"
        )
    retain, gone, notes = _choose_rows(subject)
    found = subject.identity() | {
        "symmetries": [{"name": type(part).__name__, "options": settings_of(part)} for part in _parts(moving)],
        "tolerance": tolerance,
        "defense_seed": defense_seed,
        "forget": array_digest(subject.parts.digests[gone]),
    }
    config = as_plain(subject.config) | {RESOLVED: to_json(found)}
    if not out.exists() or not start_run(out, kind="teleport", config=config, places=PLACES).complete:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            moved, certificate = move_model(
                subject.model.to(subject.device),
                moving,
                retain=subject.examples(retain),
                forget=subject.examples(gone) if len(gone) else None,
                seed=defense_seed,
            )
        # A network that cannot be moved leaves no folder, so that the next try may use its name.
        run = start_run(out, kind="teleport", config=config, places=PLACES)
        save_subject(run, subject, moved, parts=subject.parts)
        before, after = model_digest(subject.model), model_digest(moved)
        still = ["nothing moved: the result is bit-identical"] if before == after else []
        what, measured, bound = _measured(certificate, moving, moved, tolerance)
        found_out = Teleport(
            outcome="holds" if measured <= bound else "does not hold",
            what=what,
            measured=measured if isfinite(measured) else None,
            bound=bound,
            experiment_only=defense_seed is not None,
            original=before,
            teleported=after,
            certificate=to_json(certificate.as_json()),
            notes=tuple(dict.fromkeys((*notes, *still, *certificate.notes, *(str(w.message) for w in caught)))),
        )
        run.write_json("results.json", found_out.model_dump(mode="json"))
        run.finish()
    results = Teleport.model_validate_json((out / "results.json").read_text())
    code = 0 if results.outcome == "holds" else 1
    if as_json:
        print_json(out / "results.json")
        raise typer.Exit(code)
    finish(_lines(results, " then ".join(symmetry)), exit_code=code, out=out)


def _choose_rows(subject: Subject) -> tuple[Index, Index, tuple[str, ...]]:
    """Rows to keep and to forget, and notes: what is asked for, else what earlier requests forgot, else nothing;
    everything else that the model knows is to be kept.
    """
    import numpy as np

    from ..errors import DataError
    from .subject import requested_rows

    ask = subject.config.forget
    notes: tuple[str, ...] = ()
    if ask.rows is not None or ask.label is not None or ask.fraction is not None:
        forget = requested_rows(subject).rows
    else:
        forget = subject.forgotten
        if len(forget):
            notes = (f"the rows to forget are the {len(forget)} that this model was asked to forget",)
    retain = np.setdiff1d(subject.known, forget)
    if not len(retain):
        raise DataError("every row is to be forgotten; leave some to keep")
    return retain, forget, notes


def _measured(
    certificate: Certificate, symmetry: Symmetry, model: nn.Module, tolerance: float
) -> tuple[str, float, float]:
    """What says whether the function was kept, its value and its bound: exact symmetries by logits, up to rounding;
    others by the retain loss.
    """
    from ..symmetry.null_space import NullSpace

    drifts = [drift for drift in (certificate.retain, certificate.held_out) if drift is not None]
    if any(isinstance(part, NullSpace) for part in _parts(symmetry)):
        return "change of the mean loss of retained rows", max(abs(d.loss_change) for d in drifts), tolerance
    double = {str(p.dtype) for p in model.parameters() if p.is_floating_point()} == {"torch.float64"}
    what, bound = "largest logit change, relative to the largest logit", EXACT["float64" if double else "float32"]
    return what, max(drift.relative for drift in drifts), bound


def _choose_symmetry(names: Sequence[str], options: Mapping[str, Any]) -> Symmetry:
    """The named symmetries, one after another. An option goes to each that has it; {symmetry: {option: value}} to one,
    before all others.
    """
    from ..errors import InputError, nearest
    from ..symmetry.base import Compose, make_symmetry, symmetry_names, symmetry_options

    known = {name: {option.name for option in symmetry_options(name)} for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in sorted(options, key=symmetry_names().__contains__):
        value = options[key]
        if key in given and isinstance(value, Mapping):
            given[key] |= value
            continue
        owners = [name for name in names if key in known[name]]
        if not owners:
            every = {option for theirs in known.values() for option in theirs}
            raise InputError(f"{' and '.join(names)}: there is no option {key!r}; {nearest(key, every)}")
        for name in owners:
            given[name][key] = value
    symmetries = [make_symmetry(name, **given[name]) for name in names]
    return symmetries[0] if len(symmetries) == 1 else Compose(*symmetries)


def _parts(symmetry: Symmetry) -> Sequence[Symmetry]:
    from ..symmetry.base import Compose

    return symmetry.symmetries if isinstance(symmetry, Compose) else (symmetry,)


def _lines(results: Results, name: str) -> list[str]:
    """What was moved, what that changed, what could not move, and the verdict."""
    found = results.certificate
    moved = [layer for layer in found["layers"] if layer["moved"] or layer["moved_unreached"]]
    lines = [
        f"{name} moved {len(moved)} tensors by {found['relative_move']:.3g} of the length of the weights, in "
        f"{found['seconds']:.1f} s"
    ]
    if found["moved_unreached"]:
        lines.append(f"  and by {found['moved_unreached']:.3g} where no input reaches, which hides nothing")
    for what in ("retain", "held_out", "forget"):
        if found[what] is not None:
            before, after = found[what]["loss_before"], found[what]["loss_after"]
            lines.append(f"  loss on {what.replace('_', ' '):<10}{before:.4g} -> {after:.4g}")
    if found["energy_before"] is not None and found["energy_after"] is not None:
        lines.append(f"  forget gradient energy {found['energy_before']:.4g} -> {found['energy_after']:.4g}")
    pinned = [(f"{p['tensor']} ({p['count']} channels)", reason) for p in found["pinned"] for reason in p["reasons"]]
    for what, pairs in (("pinned by", pinned), ("left,", list(found["left"].items()))):
        for reason in dict.fromkeys(reason for _, reason in pairs):
            names = list(dict.fromkeys(name for name, why in pairs if why == reason))
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"  {what} {reason}: {', '.join(names[:3])}{more}")
    lines += [f"note: {note}" for note in results.notes]
    if results.experiment_only:
        lines.append("experiment only: whoever knows the seed can undo this move")
    measured = "not finite" if results.measured is None else f"{results.measured:.2g}"
    return [*lines, f"{results.outcome}: {results.what} {measured}, at most {results.bound:.2g} allowed"]
