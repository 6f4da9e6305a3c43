"""`warp unlearn`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import ConfigFile, Json, Overrides, Threads, UserModel, assign, prepare


def unlearn(
    source: Annotated[Path, typer.Argument(help="A run of `warp train` or `warp unlearn`, or a weight file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the result.")],
    forget: Annotated[Path | None, typer.Option(help="An .npy file of positions in the training part.")] = None,
    forget_class: Annotated[int | None, typer.Option(help="Forget every training example of this class.")] = None,
    forget_fraction: Annotated[float | None, typer.Option(help="Forget a random fraction of each class.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Forget what earlier requests asked for, too.")] = False,
    method: Annotated[str | None, typer.Option(help="See `warp methods`.")] = None,
    defense: Annotated[str | None, typer.Option(help="See `warp defenses`; none without it.")] = None,
    defense_seed: Annotated[
        int | None, typer.Option(min=0, help="For experiments only: whoever knows it can undo the defence.")
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random draw.")] = None,
    model: UserModel = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Remove training examples from a model, and leave a deletion record."""
    from ..workflows.unlearn import UnlearnRequest, unlearn_run
    from .progress import Progress

    builder = prepare(threads, model)
    settings = assign(
        override,
        forget__rows=forget,
        forget__label=forget_class,
        forget__fraction=forget_fraction,
        forget__again=True if again else None,
        method__name=method,
        defense__name=defense,
        defense__seed=defense_seed,
        seed=seed,
        device=device,
    )
    with Progress(f"unlearn ({method})" if method else "unlearn") as progress:
        outcome = unlearn_run(UnlearnRequest(source, out, config, settings), builder=builder, watch=progress)
    for note in outcome.notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps(outcome.summary, indent=2))
    else:
        _show(outcome.summary, out)


def _show(summary: dict[str, Any], out: Path) -> None:
    typer.echo(
        f"{summary['method']['name']} forgot {summary['forgotten']} examples and kept {summary['retained']} "
        f"in {summary['updates']} updates ({summary['seconds']:.1f} s)"
    )
    for what, before in summary["accuracy"]["original"].items():
        typer.echo(f"  accuracy on {what:<20}{before:.4f} -> {summary['accuracy']['unlearned'][what]:.4f}")
    if summary["defense"] is not None:
        _show_defense(summary["defense"])
    typer.echo(f"written to {out}; the deletion record is {out / 'record.json'}")


def _show_defense(about: dict[str, Any]) -> None:
    drift, energy, count = about["largest_retain_drift"], about["forget_energy"], about["teleports"]
    typer.echo(
        f"defended by {about['name']}: {count} teleport{'s' * (count != 1)}, {about['taken_back']} taken back"
        + ("" if drift is None else f"; the largest change of the retain loss by one is {drift:+.2g}")
    )
    if None not in energy.values():
        typer.echo(f"  forget gradient energy        {energy['original']:.4g} -> {energy['unlearned']:.4g}")
    if about["experiment_only"]:
        typer.echo("  experiment only: whoever knows the seed can undo the defence")
