"""`warp check`: is this the user's model, on the user's data?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsGiven, Json, Options, Stated, prepare, takes_options
from .show import finish, print_json

if TYPE_CHECKING:
    from ..unlearning.checks import Checked
    from .subject import Subject


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
    from ..data.files import to_json
    from ..models.weights import model_digest
    from ..report.schema import Check
    from ..runs.directory import start_run
    from .subject import PLACES, open_subject, save_subject

    prepare(options.threads)
    subject = open_subject(model_file, options, flags={"accuracy": accuracy})
    checked = check_subject(subject, as_given=as_given, defense=defense)
    found = Check(**to_json(asdict(checked)), digest=model_digest(subject.model))
    results = found.model_dump(mode="json")
    if out is not None:
        config = as_plain(subject.config) | {RESOLVED: subject.identity()}
        run = start_run(out, kind="check", config=config, places=PLACES)
        if not run.complete:
            save_subject(run, subject, subject.model, parts=subject.parts, record=subject.record)
            run.write_json("results.json", results)
            run.finish()
    if as_json:
        print_json(results)
        return
    finish([*str(checked).splitlines(), "holds: this model fits these data"], exit_code=0, out=out)


def check_subject(subject: Subject, *, as_given: bool = False, defense: str | None = None) -> Checked:
    """Check the model on at most 2,000 of the rows that it knows and of those that it never saw; raises where it does
    not fit them.
    """
    import torch

    from ..data.examples import TensorExamples
    from ..data.preprocess import readings
    from ..data.sampling import draw_per_class
    from ..defense.registry import make_defense
    from ..randomness import Streams
    from ..unlearning.checks import check_model

    table = subject.table
    raw = {}
    for what, rows in (("known", subject.known), ("test", subject.parts.unseen)):
        count, generator = min(2000, len(rows)), Streams(0).generator("check", what)
        drawn = rows[draw_per_class(table.y[rows], count=count, generator=generator)]
        x = table.x[drawn]
        # torch knows no numbers of another byte order.
        x = x.astype(x.dtype.newbyteorder("="), copy=False)
        raw[what] = TensorExamples(torch.from_numpy(x), torch.from_numpy(table.y[drawn]))
    return check_model(
        subject.model,
        known=raw["known"],
        test=raw["test"] if len(raw["test"]) else None,
        preprocess=subject.preprocess,
        readings={} if as_given else readings(table, subject.preprocess),
        accuracy=subject.config.accuracy,
        defense=None if defense is None else make_defense(defense),
    )
