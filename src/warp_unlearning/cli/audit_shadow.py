"""`warp audit shadow`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, Overrides, UserModel, assign
from .run_progress import RunProgress, Style

if TYPE_CHECKING:
    from ..runs.events import Event


def shadow(
    config: Annotated[Path | None, typer.Argument(help="A YAML file of settings; all have defaults.")] = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for the run; a stopped run there is taken up again.")],
    override: Overrides = None,
    store: Annotated[
        Path | None, typer.Option(help="Where models and scores are kept; in the run unless several are to share it.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at once; a core each by default.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(help='Address of a Ray cluster, or "auto"; the store must be on a path all nodes share.'),
    ] = None,
    model: UserModel = None,
    track: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard, which the extra `track` installs.", show_default=False)
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done.")] = False,
    progress: Annotated[Style, typer.Option(help="auto, bars, lines, json (one object a line) or none.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train shadow models, unlearn with every method and defence, and attack them all (U-LiRA).

    Killed at any moment and started again it goes on where it was, to the same results. Exit code 1: some jobs failed;
    the results rest on the others and say so.
    """
    from ..config.resolve import resolve_as
    from ..config.shadow import ShadowConfig
    from ..runs.cores import use_threads
    from ..runs.tally import Tally
    from ..studies.shadow_work import ShadowWork
    from ..workflows.audit_shadow import (
        RESULTS,
        ShadowRequest,
        carry_out,
        known_seconds,
        pilot,
        prepare_shadows,
        seconds_to_come,
    )
    from ..workflows.engines import choose_engine
    from ..workflows.tracking import tracked

    use_threads(1)
    settings = assign(override, model__name="custom" if model else None)
    request = ShadowRequest(resolve_as(ShadowConfig, file=config, overrides=settings), out, store, model)
    prepared = prepare_shadows(request)
    engine = choose_engine(workers=workers, ray=ray, device=prepared.plan.settings.device)
    known = known_seconds(prepared)
    tally = Tally(prepared.plan.jobs, workers=engine.workers or 1, known=known)
    if progress not in ("none", "json"):
        typer.echo(_planned(tally, len(known), engine.workers), err=True)
    if plan:
        return
    with RunProgress(tally, progress) as shown, tracked(track) as tracking:

        def both(event: Event) -> None:
            shown(event)
            tracking(event)

        if not known and not prepared.run.complete:
            work = ShadowWork(prepared.plan, prepared.seeds)
            engine.engine.run(pilot(prepared), work=work, store=prepared.store, watch=both)
        if progress not in ("none", "json"):
            shown.say(_cost(seconds_to_come(prepared), engine.workers))
        results = carry_out(prepared, engine.engine, watch=both)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        show(results)
        typer.echo(f"written to {out / RESULTS}; `warp report {out}` makes a page of it")
    if results["failures"]:
        raise typer.Exit(1)


def _planned(tally: Any, there: int, workers: int | None) -> str:
    stages = ", ".join(f"{stage.jobs} {stage.name}" for stage in tally.stages.values())
    at_once = f"{workers} at once" if workers else "on the cluster"
    return f"planned: {stages}; {there} are there already; {at_once}"


def _cost(seconds: float, workers: int | None) -> str:
    """What the rest will cost, going by the jobs that are done."""
    alone = f"the rest is about {_hours(seconds)} of work"
    return f"{alone}, {_hours(seconds / workers)} on {workers} processes" if workers else alone


def _hours(seconds: float) -> str:
    """In the unit that suits.

    >>> _hours(40), _hours(500), _hours(9000)
    ('40 s', '8.3 min', '2.5 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def show(results: dict[str, Any]) -> None:
    """The table of arms."""
    from .table import print_table

    about = results["audited"]
    print_table(
        f"U-LiRA: {about['shadows']} shadows, {about['forget_sets']} forget sets of {about['forget_set_size']} each",
        [
            "arm",
            "AUC",
            "verdict",
            "TPR at 1 %",
            "memorised 5 %: AUC",
            "retain AUC changes by",
            "strongest attacker",
            "test accuracy",
        ],
        [_row(arm) for arm in results["arms"]],
    )
    for failure in results["failures"]:
        typer.echo(f"failed: {failure['job']}: {failure['reason']}")


def _row(arm: dict[str, Any]) -> list[str]:
    score = arm["all"]
    if score is None:
        return [arm["name"], "", arm["problem"], "", "", "", "", _estimate(arm["accuracy"]["test"])]
    rate = next(rate for rate in score["rates"] if rate["fpr"] == 0.01)
    part = arm["slices"]["most memorised 5 %"]
    retain, strongest = arm["retain_leakage"], arm["strongest"]
    return [
        arm["name"],
        _estimate(score["auc"]),
        score["verdict"],
        _estimate(rate["tpr"]) if rate["resolved"] else "unresolved",
        _estimate(part["auc"]) if part else "",
        _estimate(retain["difference"]) if retain else "",
        _estimate(strongest["strength"]) if strongest else "",
        _estimate(arm["accuracy"]["test"]),
    ]


def _estimate(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
