"""`warp unlearn`: carry out one request to forget, from a model to a run with a new model and a judged record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as given
from .options import Options, request_flags, takes_options
from .show import finish, points, print_json

if TYPE_CHECKING:
    from ..report.schema import Unlearning

_RIGHT_ON = {
    "forgotten": "forgotten rows",
    "unseen": "unseen rows of their classes",
    "retained": "retained rows",
    "test": "test rows",
    "kept": "test rows of classes kept",
    "earlier": "rows forgotten before",
}
_TRAIN = "For --method retrain: your own train(model, rows)."
_OUR_RECIPE = "For --method retrain of your own network: train it by our recipe."


@takes_options
def unlearn(
    source: given.Model,
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the result.")] = None,
    forget: given.ForgetFile = None,
    forget_class: given.ForgetClass = None,
    forget_fraction: Annotated[float | None, typer.Option(help="A random share of each class.")] = None,
    column: given.Column = None,
    by: given.By = None,
    drawn: given.Drawn = False,
    again: Annotated[bool, typer.Option("--again", help="Forget again what earlier requests asked for, too.")] = False,
    method: Annotated[str | None, typer.Option(help="See `warp methods`; FILE.py:Class for one of your own.")] = None,
    defense: Annotated[str | None, typer.Option(help="See `warp defenses`; none without it.")] = None,
    defense_seed: given.DefenseSeed = None,
    train: Annotated[str | None, typer.Option(metavar="FILE.py:train", help=_TRAIN)] = None,
    our_recipe: Annotated[bool, typer.Option("--our-recipe", help=_OUR_RECIPE)] = False,
    accuracy: given.Stated = None,
    as_given: given.AsGiven = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done, and what be judged.")] = False,
    options: Options,
    as_json: given.Json = False,
) -> None:
    """Remove rows from a model, judge the result, and leave a deletion record.

    The judgement compares the forgotten rows with rows the model never saw. It can say "holds" from some 700 forgotten
    and 1,400 test rows on. For fewer: --method retrain (nothing is left to judge), `warp compare --retrained` beside
    two retrained models, `warp audit shadow`; or --drawn, where the rows were drawn at random.

    Exit code 0: it holds. 1: it does not. 2: bad input. 3: cannot be said, and the last line says what would decide.
    """
    from .request import unlearn_run

    said: list[str] = []
    results = unlearn_run(
        source,
        out,
        options=options,
        train=train,
        our_recipe=our_recipe,
        as_given=as_given,
        plan=plan,
        say=(lambda line: said.append(line) if as_json and plan else typer.echo(line, err=as_json)),
        accuracy=accuracy,
        forget__fraction=forget_fraction,
        forget__drawn=drawn or None,
        forget__again=again or None,
        method__name=method,
        defense__name=defense,
        defense__seed=defense_seed,
        **request_flags(forget, forget_class, column, by),
    )
    if results is not None:
        plain = results.model_dump(mode="json") if as_json else None
        finish(_lines(results), results=plain, exit_code=results.verdict.exit, out=out)
    elif as_json:
        print_json({"plan": said})


def _lines(results: Unlearning) -> list[str]:
    before, after, teleports = results.before, results.after, results.teleports
    lines = [
        f"done      {_count(results.updates, 'update')} in {results.seconds:.1f} s; {results.retained:,} rows kept",
        f"{'right on':<28}before  after",
    ]
    for field, name in _RIGHT_ON.items():
        if (share := getattr(before, field)) is not None:
            lines.append(f"{name:<28}{points(share):>6}{points(getattr(after, field)):>7}")
    if teleports is not None and results.defense is not None:
        drift = teleports.largest_drift
        change = "" if drift is None else f"; the largest change of the retain loss by one is {drift:+.2g}"
        made = f"{_count(teleports.made, 'teleport')}, {teleports.taken_back} taken back"
        lines.append(f"defended by {results.defense.name}: {made}{change}")
        if teleports.energy_before is not None and teleports.energy_after is not None:
            lines.append(f"forget gradient energy {teleports.energy_before:.4g} -> {teleports.energy_after:.4g}")
        if teleports.experiment_only:
            lines.append("experiment only: whoever knows the seed can undo the defence")
    return [*lines, *(f"note: {note}" for note in results.notes), *results.verdict.lines]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
