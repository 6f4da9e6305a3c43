"""`warp tune`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, Json, Overrides, Processes, ProgressStyle, RunFolder, SettingsFile, UserModel, assign

if TYPE_CHECKING:
    from ..runs.drain import Watch
    from ..runs.jobs import Job
    from ..workflows.engines import ChosenEngine
    from ..workflows.tune import PreparedTuning, Watching


def tune(
    config: SettingsFile = None,
    *,
    out: RunFolder,
    override: Overrides = None,
    method: Annotated[list[str] | None, typer.Option(help="A method to tune; several times for more.")] = None,
    defense: Annotated[
        list[str] | None, typer.Option(help="A defence, beside each method alone; several times for more.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each arm, in all; a finished run may be given more.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models side by side: processes of a core each, or lanes of a GPU.")
    ] = None,
    processes: Processes = None,
    audited: Annotated[
        Path | None, typer.Option(help="An .npy file of points that a study audits: not forgotten or measured here.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random draw.")] = None,
    device: Device = None,
    store: Annotated[
        Path | None, typer.Option(help="Where models and trials are kept; in the run unless several are to share it.")
    ] = None,
    model: UserModel = None,
    progress: ProgressStyle = "auto",
    as_json: Json = False,
) -> None:
    """Search settings of methods and defences, with as many trials for each, on shadows that no report uses.

    Killed at any moment and started again it goes on where it was, to the same trials. The search compares with
    retrained models: an oracle. Exit code 1: an arm has no complete trial.
    """
    from ..config import TuneConfig, resolve_as
    from ..runs.local import use_threads
    from ..runs.progress import in_words
    from ..workflows.engines import choose_study_engine
    from ..workflows.tune import TuneRequest, carry_out_tuning, prepare_tuning

    use_threads(1)
    settings = assign(
        override,
        model__name="custom" if model else None,
        trials=trials,
        audited=audited,
        seed=seed,
        device=device,
        methods=method or None,
        defenses=defense or None,
    )
    resolved = resolve_as(TuneConfig, file=config, overrides=settings)
    prepared = prepare_tuning(TuneRequest(resolved, out, store, model))
    engine = choose_study_engine(prepared.plan.settings.device, at_once=jobs, processes=processes)
    if in_words(progress):
        typer.echo(_planned(prepared, engine), err=True)
    results = carry_out_tuning(prepared, engine.engine, watching=_watching(prepared, engine, progress))
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        show(results, out)
    if any(arm["chosen"] is None for arm in results["arms"]):
        raise typer.Exit(1)


def _planned(prepared: PreparedTuning, engine: ChosenEngine) -> str:
    units = len(list(prepared.plan.units()))
    return (
        f"planned: {len(prepared.plan.settings.arms)} arms of {prepared.config.trials} trials, each on {units} forget "
        f"sets of shadows from 1000 on; {engine.workers} at once"
    )


def _watching(prepared: PreparedTuning, engine: ChosenEngine, progress: str) -> Watching:
    """Progress of its own for every round of jobs, under its heading."""
    from ..runs.progress import Progress, in_words

    @contextmanager
    def watching(heading: str, planned: Sequence[Job]) -> Iterator[Watch]:
        with Progress(planned, prepared.store, progress, workers=engine.workers or 1) as shown:
            if in_words(progress):
                shown.say(heading)
            yield shown

    return watching


def show(results: dict[str, Any], out: Path) -> None:
    """The table of chosen trials, and what has to be said with it."""
    from ..studies.tuning_tables import COLUMNS, table_rows
    from ..workflows.tune import RECIPES, TABLE
    from .show import print_table

    print_table("chosen trials", COLUMNS, table_rows(results))
    for note in results["notes"]:
        typer.echo(note)
    for arm in results["arms"]:
        if arm["failed"]:
            reasons = [trial["reason"] for trial in arm["trials"] if trial["state"] == "failed"]
            typer.echo(f"{arm['name']}: {arm['failed']} failed, the first: {reasons[0]}")
    typer.echo(f"chosen settings: {out / RECIPES}; tables: {out / TABLE}; frontier: {out / 'frontier.png'}")
