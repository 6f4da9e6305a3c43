"""`warp compare`: before, after and retrained, side by side, and the judgement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import By, Column, Drawn, ForgetClass, ForgetFile, Json, Options, prepare, request_flags, takes_options
from .show import finish, print_json, print_table, short

if TYPE_CHECKING:
    from ..unlearning.judge import ModelComparison


@takes_options
def compare(
    original: Annotated[Path, typer.Argument(help="The model before: a run, or a weight file.")],
    unlearned: Annotated[Path, typer.Argument(help="The model after: a run, or a weight file.")],
    *,
    retrained: Annotated[
        list[Path] | None,
        typer.Option(help="A model retrained without the rows; two are needed to hold, one can accuse."),
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
    from ..data.table import FORGET, RETAIN, TEST
    from ..errors import InputError
    from ..unlearning.judge import compare as compare_models
    from .subject import check_reference, on_one_table, open_subject, requested_rows

    prepare(options.threads)
    if out is not None:
        safe_output(out)
    flags = request_flags(forget, forget_class, column, by) | {"forget__drawn": drawn or None}
    paths = {"original": original, "unlearned": unlearned}
    paths |= {f"retrained {i + 1}": path for i, path in enumerate(retrained or ())}
    # A weight file takes what a run beside it remembers.
    runs = {name: open_subject(path, options, flags=flags) for name, path in paths.items() if path.is_dir()}
    beside = next(iter(runs.values()), None)
    subjects = {
        name: runs.get(name) or open_subject(path, options, beside=beside, flags=flags) for name, path in paths.items()
    }
    subjects = on_one_table(subjects)
    first, after = subjects["original"], subjects["unlearned"]
    ours, word = False, ""
    if forget is not None or forget_class is not None:
        asked = requested_rows(first)
        parts, word = first.parts.request(first.table, asked.rows), asked.drawn
    elif after.record.deletions:
        parts, last = after.parts, after.record.deletions[-1]
        ours = (last.verdict or {}).get("null") == "ours"
        if last.request.get("drawn") or drawn:
            word = "this software" if last.request.get("how") in ("class", "fraction") else "your word"
    else:
        raise InputError(f"nothing says which rows {unlearned} forgot; give --forget FILE")
    # Rows that any of the models has learned from are no unseen rows.
    test = parts.unseen
    for subject in subjects.values():
        test = test[subject.parts.part[test] == TEST]
    for name in list(subjects)[2:]:
        check_reference(subjects[name], parts.rows(FORGET), paths[name])
    models = {name: subject.model.to(first.device) for name, subject in subjects.items()}
    found = compare_models(
        models.pop("original"),
        models.pop("unlearned"),
        forget=first.examples(parts.rows(FORGET)),
        retain=first.examples(parts.rows(RETAIN)),
        test=first.examples(test) if len(test) else None,
        retrained=tuple(models.values()),
        drawn=word,
        ours=ours and not models,
        seed=first.config.seed,
    )
    if out is not None:
        write_atomically(out, (json.dumps(found.as_json(), indent=2) + "\n").encode())
    if as_json:
        print_json(found.as_json())
        raise typer.Exit(found.verdict.exit)
    _show(found)
    finish(found.verdict.lines, exit_code=found.verdict.exit, out=out)


def _show(found: ModelComparison) -> None:
    """One table of accuracies, and how far each model is from the first retrained one."""
    sets = list(found.counts)
    columns = ["model", *(f"{what} ({found.counts[what]:,})" for what in sets), "loss"]
    rows = []
    for name, scores in found.models.items():
        gap = found.gaps.get(name)
        cells = [short(scores.accuracy[what]) for what in sets]
        far = ["-" if gap is None else f"{gap.forget_output.value:.3f}"] if found.gaps else []
        rows.append([name, *cells, f"{scores.forget_loss_mean.value:.3f}", *far])
    print_table("Accuracy, with 95 % intervals", [*columns, *(["distance"] if found.gaps else [])], rows)
    if found.gaps:
        typer.echo("loss: mean on forgotten rows; distance: mean total variation from the first retrained model there")
