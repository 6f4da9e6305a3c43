"""`warp check`: is this the user's model, on the user's data?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsGiven, Json, Options, Stated, prepare, takes_options
from .show import finish, print_json

if TYPE_CHECKING:
    from ..report import schema
    from ..unlearning.checks import Checked
    from .subject import Subject

MOST = 2000


@takes_options
def check(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL", help="A weight file (.safetensors, .pt), or a run.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder that remembers model and data for later commands.")
    ] = None,
    defense: Annotated[str, typer.Option(help="The defence whose reach is measured.")] = "warp",
    accuracy: Stated = None,
    as_given: AsGiven = False,
    options: Options,
    as_json: Json = False,
) -> None:
    """Check that a model belongs to its data: how rows are read, the order of classes, precision and accuracy.

    Exit code 2: it does not, and the sentence says what to set. With --out every later command takes the run and needs
    no further options.
    """
    from ..config import RESOLVED, as_plain
    from ..runs.directory import start_run
    from .subject import PLACES, open_subject, save_subject

    prepare(options.threads)
    subject = open_subject(model_file, options, flags={"accuracy": accuracy})
    checked = check_subject(subject, as_given=as_given, defense=defense)
    results = _results(subject, checked)
    if out is not None:
        config = as_plain(subject.config) | {RESOLVED: subject.identity()}
        run = start_run(out, kind="check", config=config, places=PLACES)
        if not run.complete:
            save_subject(run, subject, subject.model, parts=subject.parts, record=subject.record)
            if subject.record.deletions:
                run.write_json("record.json", subject.record.as_json())
            run.write_json("results.json", results.model_dump(mode="json"))
            run.finish()
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    finish([*str(checked).splitlines(), "holds: this model fits these data"], exit_code=0, out=out)


def _results(subject: Subject, checked: Checked) -> schema.Check:
    from ..models.weights import model_digest
    from ..report import schema

    return schema.Check(**checked.as_json(), digest=model_digest(subject.model))


def check_subject(subject: Subject, *, as_given: bool = False, defense: str | None = None) -> Checked:
    """Check the model on at most 2,000 of the rows that it knows and of those that it never saw; raises where it does
    not fit them.
    """
    import torch

    from ..data.examples import TensorExamples
    from ..data.preprocess import readings
    from ..data.sampling import draw_per_class
    from ..data.table import TEST
    from ..defense.registry import make_defense
    from ..randomness import Streams
    from ..unlearning.checks import check_model

    table = subject.table
    raw = {}
    for what, rows in (("known", subject.known), ("test", subject.parts.rows(TEST))):
        count, generator = min(MOST, len(rows)), Streams(0).generator("check", what)
        drawn = rows[draw_per_class(table.y[rows], count=count, generator=generator)]
        raw[what] = TensorExamples(torch.from_numpy(table.x[drawn]), torch.from_numpy(table.y[drawn]))
    others = {} if as_given else readings(table, subject.preprocess)
    return check_model(
        subject.model,
        known=raw["known"],
        test=raw["test"] if len(raw["test"]) else None,
        preprocess=subject.preprocess,
        readings=others,
        accuracy=subject.config.accuracy,
        defense=None if defense is None else make_defense(defense),
    )
