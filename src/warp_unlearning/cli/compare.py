"""`warp compare`: before, after and retrained, side by side, and the judgement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import By, Column, Drawn, ForgetClass, ForgetFile, Json, Options, request_flags, takes_options
from .show import finish, print_table, short

if TYPE_CHECKING:
    from ..unlearning.judge import ModelComparison

_RETRAINED = "A model retrained without the rows; two are needed to hold, one can accuse."


@takes_options
def compare(
    original: Annotated[Path, typer.Argument(help="The model before: a run, or a weight file.")],
    unlearned: Annotated[Path, typer.Argument(help="The model after: a run, or a weight file.")],
    *,
    retrained: Annotated[list[Path] | None, typer.Option(help=_RETRAINED)] = None,
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
    from ..data.table import FORGET, RETAIN, TEST
    from ..unlearning.judge import compare as compare_models
    from .request import asked_parts
    from .subject import check_reference, open_subjects

    if out is not None:
        safe_output(out)
    flags = request_flags(forget, forget_class, column, by) | {"forget__drawn": drawn or None}
    references = {f"retrained {i}": path for i, path in enumerate(retrained or (), 1)}
    subjects = open_subjects({"original": original, "unlearned": unlearned} | references, options, **flags)
    first, after = subjects["original"], subjects["unlearned"]
    asked = forget is not None or forget_class is not None
    parts, word = asked_parts(first, after, unlearned, given=asked, drawn=drawn)
    ours = not (asked or references) and (after.record.deletions[-1].verdict or {}).get("null") == "ours"
    # Rows that any of the models has learned from are no unseen rows.
    test = parts.unseen
    for subject in subjects.values():
        test = test[subject.parts.part[test] == TEST]
    for name, path in references.items():
        check_reference(subjects[name], parts.rows(FORGET), path)
    before, now, *others = (subject.model.to(first.device) for subject in subjects.values())
    found = compare_models(
        before,
        now,
        forget=first.examples(parts.rows(FORGET)),
        retain=first.examples(parts.rows(RETAIN)),
        test=first.examples(test) if len(test) else None,
        retrained=others,
        drawn=word,
        ours=ours,
        seed=first.config.seed,
    )
    results = found.as_json()
    if out is not None:
        write_atomically(out, (json.dumps(results, indent=2) + "\n").encode())
    if not as_json:
        _show(found)
    finish(found.verdict.lines, results=results if as_json else None, exit_code=found.verdict.exit, out=out)


def _show(found: ModelComparison) -> None:
    columns = ["model", *(f"{what} ({count:,})" for what, count in found.counts.items()), "loss"]
    rows = []
    for name, scores in found.models.items():
        gap = found.gaps.get(name)
        cells = [*(short(scores.accuracy[what]) for what in found.counts), f"{scores.forget_loss_mean.value:.3f}"]
        far = ["-" if gap is None else f"{gap.forget_output.value:.3f}"] if found.gaps else []
        rows.append([name, *cells, *far])
    print_table("Accuracy, with 95 % intervals", [*columns, *(["distance"] if found.gaps else [])], rows)
    if found.gaps:
        typer.echo("loss: mean on forgotten rows; distance: mean total variation from the first retrained model there")
