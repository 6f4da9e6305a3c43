"""`warp check`: is this the user's model, on the user's data?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsGiven, Json, Options, Stated, takes_options
from .show import finish

if TYPE_CHECKING:
    from ..unlearning.checks import Checked
    from .subject import Subject


@takes_options
def check(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL", help="A weight file (.safetensors, .pt), or a run.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Folder that remembers both for later commands.")] = None,
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
    from ..data.files import to_json
    from ..models.weights import model_digest
    from ..report.schema import Check
    from .subject import open_subject, save_subject

    subject = open_subject(model_file, options, accuracy=accuracy)
    checked = check_subject(subject, as_given=as_given, defense=defense)
    results = Check(**to_json(asdict(checked)), digest=model_digest(subject.model)).model_dump(mode="json")
    if out is not None and not (run := subject.start_run(out, kind="check")).complete:
        save_subject(run, subject, subject.model, parts=subject.parts, record=subject.record)
        run.write_json("results.json", results)
        run.finish()
    lines = [*str(checked).splitlines(), "holds: this model fits these data"]
    finish(lines, results=results if as_json else None, out=out)


def check_subject(subject: Subject, *, as_given: bool = False, defense: str | None = None) -> Checked:
    """Check the model on at most 2,000 of the rows that it knows and of those that it never saw; raises where it does
    not fit them.
    """
    import torch

    from ..data.examples import TensorExamples
    from ..data.preprocess import readings
    from ..data.sampling import draw_per_class
    from ..randomness import Streams
    from ..unlearning.checks import ROWS, check_model

    table, raw = subject.table, dict[str, TensorExamples]()
    for what, rows in (("known", subject.known), ("test", subject.parts.unseen)):
        count, generator = min(ROWS, len(rows)), Streams(0).generator("check", what)
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
        defense=defense,
    )
