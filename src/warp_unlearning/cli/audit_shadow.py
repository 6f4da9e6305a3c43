"""`warp audit shadow`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .estimate import estimate
from .options import Json, Overrides, Plan, ProgressStyle, RunFolder, SettingsFile, UserModel, assign


def shadow(
    config: SettingsFile = None,
    *,
    out: RunFolder,
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
    plan: Plan = False,
    progress: ProgressStyle = "auto",
    as_json: Json = False,
) -> None:
    """Train shadow models, unlearn with every method and defence, and attack them all (U-LiRA).

    Killed at any moment and started again it goes on where it was, to the same results. Exit code 1: some jobs failed;
    the results rest on the others and say so.
    """
    from ..config import ShadowConfig, resolve_as
    from ..runs.local import use_threads
    from ..runs.progress import Progress, in_words, planned_text
    from ..studies.shadow_cost import known_seconds, seconds_to_come
    from ..workflows.audit_shadow import ShadowRequest, carry_out, carry_out_pilot, prepare_shadows
    from ..workflows.engines import choose_engine
    from ..workflows.tracking import tracked

    use_threads(1)
    settings = assign(override, model__name="custom" if model else None)
    resolved = resolve_as(ShadowConfig, file=config, overrides=settings)
    prepared = prepare_shadows(ShadowRequest(resolved, out, store, model), plan_only=plan)
    engine = choose_engine(workers=workers, ray=ray, device=prepared.plan.settings.device)
    known = known_seconds(prepared.plan, prepared.store)
    jobs = prepared.plan.jobs
    if in_words(progress):
        at_once = f"{engine.workers} at once" if engine.workers else "on the cluster"
        typer.echo(f"{planned_text(jobs, prepared.store)}; {at_once}", err=True)
    if plan:
        return
    with (
        tracked(track) as tracking,
        Progress(jobs, prepared.store, progress, workers=engine.workers or 1, tell=tracking) as shown,
    ):
        if not known and not prepared.run.complete:
            carry_out_pilot(prepared, engine.engine, watch=shown)
        if in_words(progress):
            shown.say(_cost(seconds_to_come(prepared.plan, prepared.store), engine.workers))
        results = carry_out(prepared, engine.engine, watch=shown)
    _tell(results, out, as_json=as_json)


def _tell(results: dict[str, Any], out: Path, *, as_json: bool) -> None:
    from ..workflows.audit_shadow import RESULTS

    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        show(results)
        typer.echo(f"written to {out / RESULTS}; `warp report {out}` makes a page of it")
    if results["failures"]:
        raise typer.Exit(1)


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
    from .show import print_table

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
        return [arm["name"], "", arm["problem"], "", "", "", "", estimate(arm["accuracy"]["test"])]
    rate = next(rate for rate in score["rates"] if rate["fpr"] == 0.01)
    part = arm["slices"]["most memorised 5 %"]
    retain, strongest = arm["retain_leakage"], arm["strongest"]
    return [
        arm["name"],
        estimate(score["auc"]),
        arm["verdict"]["outcome"],
        estimate(rate["tpr"]) if rate["resolved"] else "unresolved",
        estimate(part["auc"]) if part else "",
        estimate(retain["difference"]) if retain else "",
        estimate(strongest["strength"]) if strongest else "",
        estimate(arm["accuracy"]["test"]),
    ]
