"""`warp audit pair`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .estimate import estimate
from .options import Json, Options, prepare, takes_options

if TYPE_CHECKING:
    from ..workflows.audit_pair import PairOutcome, PairRequest


@takes_options
def pair(
    before: Annotated[Path, typer.Argument(help="The model before: a run of `warp train`, or a weight file.")],
    after: Annotated[Path, typer.Argument(help="The model after: a run of `warp unlearn`, or a weight file.")],
    *,
    forget: Annotated[
        Path | None, typer.Option(help="Rows that were forgotten: .csv, .txt or .npy; by default the run's.")
    ] = None,
    retrained: Annotated[
        list[Path] | None,
        typer.Option(help="A model retrained without them; give two to see the attacks where nothing was forgotten."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results and the scores behind them.")
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(help="A way to undo a defence before the attack, such as canonical; all unless there was none."),
    ] = None,
    background: Annotated[int, typer.Option(min=2, help="Test examples that attacks are fitted on, at most.")] = 1000,
    probes: Annotated[int, typer.Option(min=1, help="Retained examples that a defence is undone with.")] = 512,
    margin: Annotated[float, typer.Option(help="Half width of an interval that still shows there is no leak.")] = 0.02,
    record: Annotated[bool, typer.Option(help="Add the verdict to the deletion record of the run.")] = True,
    options: Options,
    as_json: Json = False,
) -> None:
    """Attack two checkpoints with everything that needs no shadow model, also by attackers who undo a defence.

    It reports and exits with 0 whatever it finds; `warp audit check` turns thresholds into exit codes.
    """
    from ..workflows.audit_pair import PairRequest, audit_pair_run

    prepare(options.threads)
    request = PairRequest(
        before,
        after,
        forget=forget,
        retrained=tuple(retrained or ()),
        out=out,
        steps=tuple(step) if step else None,
        background=background,
        probes=probes,
        margin=margin,
        seed=options.seed or 0,
        record=record,
        options=options,
    )
    outcome = audit_pair_run(request)
    if as_json:
        typer.echo(json.dumps(outcome.audit, indent=2))
    else:
        _tell(outcome, request)


def _tell(outcome: PairOutcome, request: PairRequest) -> None:
    show(outcome.audit)
    if outcome.recorded:
        typer.echo(f"the deletion record of {request.after} holds this verdict")
    elif outcome.unrecorded and request.after.is_dir():
        typer.echo(f"note: no deletion record holds this verdict: {outcome.unrecorded}")
    if request.out is not None:
        typer.echo(f"written to {request.out}")


def show(audit: dict[str, Any]) -> None:
    """The verdict in words, then the table."""
    typer.echo(
        f"{audit['verdict']}: the strongest of {len(audit['rows'])} attacks, {audit['strongest']}, has "
        f"max(AUC, 1 - AUC) {estimate(audit['strongest_strength'])}, corrected for their number"
    )
    if audit["beyond_retrained"] is not None:
        typer.echo(f"beyond what a retrained model reveals: {audit['beyond_retrained']}")
    counts = audit["counts"]
    _table(audit, f"{counts['forgotten']} forgotten examples against {counts['never seen']} never seen")
    for name, why in audit["not_tried"].items():
        typer.echo(f"not tried: {name}: {why}")
    for note in (*audit["threat"], *(f"note: {note}" for note in audit["notes"])):
        typer.echo(note)


def _table(audit: dict[str, Any], title: str) -> None:
    from .show import print_table

    rows = audit["rows"]
    rates = [rate["fpr"] for rate in rows[0]["rates"] if rate["fpr"] >= 0.01]
    extra = [
        (key, label)
        for key, label in (
            ("retrained", "AUC, retrained instead"),
            ("beyond", "beyond retrained"),
            ("null", "AUC, retrained twice"),
        )
        if any(row[key] is not None for row in rows)
    ]
    print_table(
        title,
        ["attack", "AUC", "adjusted p", *(f"TPR at {100 * fpr:g} %" for fpr in rates), *(label for _, label in extra)],
        [
            [
                row["name"] + (" *" if row["name"] == audit["strongest"] else ""),
                estimate(row["auc"]),
                f"{row['adjusted_p']:.2g}",
                *(_rate(rate) for rate in row["rates"] if rate["fpr"] >= 0.01),
                *(estimate(row[key]) for key, _ in extra),
            ]
            for row in rows
        ],
    )
    typer.echo("* the strongest attacker; an AUC of 0.1 leaks as much as one of 0.9: whoever sees it turns it around")


def _rate(rate: dict[str, Any]) -> str:
    return f"{rate['tpr']['value']:.3f}" if rate["resolved"] else "unresolved"
