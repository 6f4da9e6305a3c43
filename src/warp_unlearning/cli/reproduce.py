"""`warp reproduce`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import ConfigFile, Device, Json, Overrides, Plan, Processes, ProgressStyle, assign


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="table1, whitebox, radar, risk-vs-norm, runtime, fastwarp, langevin, tradeoff, sensitivity, "
            "reconstruction or adaptive."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for the study; one that was stopped goes on.")],
    config: ConfigFile = None,
    override: Overrides = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="small (digits, minutes), small-images (Fashion-MNIST, hours), paper (CIFAR-10, a GPU) or auto."
        ),
    ] = None,
    data_path: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST or CIFAR-10.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, with commas between them; all six by default.")] = None,
    defenses: Annotated[
        str | None,
        typer.Option(
            help="Of none, warp, fastwarp, warp_guarded, cob, conjugate, kick, with commas between; all by default."
        ),
    ] = None,
    shadows: Annotated[int | None, typer.Option(help="Shadow models; more of them later go on from these.")] = None,
    forget_sets: Annotated[int | None, typer.Option(help="Forget sets of each shadow.")] = None,
    pairs: Annotated[int | None, typer.Option(help="Shadows whose models are attacked with their weights.")] = None,
    runs: Annotated[int | None, typer.Option(help="Timed runs of each arm of runtime; five by default.")] = None,
    recipes: Annotated[Path | None, typer.Option(help="The recipes.yaml of a `warp tune`.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random draw but the defences'.")] = None,
    device: Device = None,
    store: Annotated[
        Path | None, typer.Option(help="Where results of jobs are kept; in the folder unless studies are to share it.")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Minutes after which no job is begun.")] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Models side by side: lanes of a GPU, or processes; as many as are good.")
    ] = None,
    processes: Processes = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Do without a GPU what is meant for one.")] = False,
    only_results: Annotated[
        bool, typer.Option("--only-results", help="Do no job: write tables from what the store holds.")
    ] = False,
    made_with: Annotated[
        str | None, typer.Option(help="0.1: read its stored results, with --only-results and its names of defences.")
    ] = None,
    plan: Plan = False,
    progress: ProgressStyle = "auto",
    as_json: Json = False,
) -> None:
    """Measure a table or a figure of the paper again, beside the paper's numbers.

    Killed at any moment and started again, here or elsewhere, it goes on from what its store holds. Exit code 1: some
    jobs failed; 3: the time was up before all were done. The table rests on the others and says so.
    """
    from ..config import ReproduceConfig, resolve_as
    from ..runs.drain import Engine, drain_nothing
    from ..runs.local import use_threads
    from ..runs.progress import Progress, in_words, planned_text
    from ..workflows.engines import choose_study_engine
    from ..workflows.reproduce import TABLE, ReproduceRequest, carry_out_study, prepare_study

    use_threads(1)
    settings = assign(
        override,
        study=study,
        size=size,
        data_path=data_path,
        shadows=shadows,
        forget_sets=forget_sets,
        pairs=pairs,
        runs=runs,
        recipes=recipes,
        seed=seed,
        device=device,
        made_with=made_with,
        methods=_names(methods),
        defenses=_names(defenses),
    )
    resolved = resolve_as(ReproduceConfig, file=config, overrides=settings)
    prepared = prepare_study(ReproduceRequest(resolved, out, store, anyway, only_results))
    jobs = prepared.planned.to_do(prepared.store)
    if in_words(progress):
        typer.echo(planned_text(jobs, prepared.store), err=True)
    if plan:
        return
    engine: Engine = drain_nothing
    if not only_results:
        engine = choose_study_engine(
            prepared.config.device, at_once=at_once, processes=processes, alone=prepared.planned.alone
        ).engine
    with Progress(jobs, prepared.store, progress) as shown:
        results = carry_out_study(prepared, engine, budget=budget, watch=shown, command=_command())
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        typer.echo((out / TABLE).read_text())
        typer.echo(f"written to {out}")
    _exit(results, only_results=only_results)


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",")]


def _exit(results: dict[str, Any], *, only_results: bool) -> None:
    """End with the exit code that says what is missing, where anything is."""
    if results["failures"]:
        raise typer.Exit(1)
    if results["left"]:
        why = "the store lacks" if only_results else "the time was up with"
        how = "run the command without --only-results" if only_results else "run the command again"
        typer.echo(f"{why} {results['left']} jobs{'' if only_results else ' left'}; {how} to go on", err=True)
        raise typer.Exit(3)


def _command() -> str:
    return " ".join(["warp", *sys.argv[1:]])
