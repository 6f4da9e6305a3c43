"""`warp compare`: before, after and retrained, side by side, and the judgement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import By, Column, Drawn, ForgetClass, ForgetFile, Json, Options, prepare, takes_options
from .show import finish, print_json, print_table

if TYPE_CHECKING:
    from ..unlearning.judge import ModelComparison


@takes_options
def compare(
    original: Annotated[Path, typer.Argument(help="The model before: a run, or a weight file.")],
    unlearned: Annotated[Path, typer.Argument(help="The model after: a run, or a weight file.")],
    *,
    retrained: Annotated[
        list[Path] | None, typer.Option(help="A model retrained without the rows; two are needed to hold, one can accuse.")
    ] = None,
    forget: ForgetFile = None,
    forget_class: ForgetClass = None,
    column: Column = None,
    by: By = None,
    drawn: Drawn = False,
    out: Annotated[Path | None, typer.Option("--out", help="A .json file for the result.")] = None,
    options: Options,
    as_json: Json = False,
) -> None:
    """Compare models before and after on the forgotten, the retained and the unseen rows, and judge the change.

    Exit code 0: it holds. 1: it does not. 2: bad input. 3: cannot be said, and the last line says what would decide.
    """
    import json

    from ..data.files import safe_output, write_atomically

    prepare(options.threads)
    if out is not None:
        safe_output(out)
    found = compare_runs(
        original,
        unlearned,
        retrained=retrained or (),
        options=options,
        forget__rows=forget,
        forget__label=forget_class,
        forget__column=column,
        forget__by=by,
        forget__drawn=True if drawn else None,
    )
    if out is not None:
        write_atomically(out, (json.dumps(found.as_json(), indent=2) + "\n").encode())
    if as_json:
        print_json(found.as_json())
        raise typer.Exit(found.verdict.exit)
    show(found)
    finish(found.verdict.lines, exit_code=found.verdict.exit, out=out)


def compare_runs(
    original: Path, unlearned: Path, *, retrained: Sequence[Path] = (), options: Options | None = None, **flags: object
) -> ModelComparison:
    """Score and judge models at paths: runs, or weight files beside one."""
    import numpy as np

    from ..data.table import FORGET, TEST, close
    from ..errors import InputError
    from ..unlearning.judge import compare as compare_models
    from .subject import check_one_data_set, check_reference, open_subject, requested_rows

    options = options or Options()
    paths = {"original": original, "unlearned": unlearned} | {f"retrained {i + 1}": p for i, p in enumerate(retrained)}
    # A weight file takes what a run beside it remembers.
    runs = {name: open_subject(path, options, **flags) for name, path in paths.items() if path.is_dir()}
    beside = next(iter(runs.values()), None)
    subjects = {n: runs[n] if n in runs else open_subject(p, options, beside=beside, **flags) for n, p in paths.items()}
    check_one_data_set(subjects)
    first, after = subjects["original"], subjects["unlearned"]
    if any(flags.get(key) is not None for key in ("forget__rows", "forget__label")):
        asked, how = requested_rows(first)
        forget = first.parts.request(first.table, asked).rows(FORGET)
    elif after.record.deletions:
        forget, how = after.parts.rows(FORGET), dict(after.record.deletions[-1].request or {})
    else:
        raise InputError(f"nothing says which rows {unlearned} forgot; give --forget FILE")
    for i, path in enumerate(retrained):
        check_reference(subjects[f"retrained {i + 1}"], forget, path)
    gone = set(after.parts.digests[after.forgotten]) | set(first.parts.digests[forget])
    ...
