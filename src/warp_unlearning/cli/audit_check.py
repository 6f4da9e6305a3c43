"""`warp audit check`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .options import Json

EXIT = {"holds": 0, "does not hold": 1, "inconclusive": 3}


def check(
    audit: Annotated[Path, typer.Argument(help="The --out of `warp audit pair`, or its results.json.")],
    max_auc: Annotated[float | None, typer.Option(help="Largest max(AUC, 1 - AUC) that any attack may have.")] = None,
    max_beyond: Annotated[
        float | None, typer.Option(help="Largest excess over a retrained model that any attack may have.")
    ] = None,
    max_tpr: Annotated[
        float | None, typer.Option(help="Largest true-positive rate that any attack may have, at --at-fpr.")
    ] = None,
    at_fpr: Annotated[float, typer.Option(help="0.0001, 0.001, 0.01 or 0.05.")] = 0.01,
    as_json: Json = False,
) -> None:
    """Hold an audit against thresholds, by its intervals.

    Exit code 0: all hold. 1: one does not. 3: the audit is too small to say, which is never a pass.
    """
    from ..workflows.audit_check import Thresholds, check_audit, worst
    from ..workflows.audit_results import read_audit

    answers = check_audit(read_audit(audit), Thresholds(max_auc, max_beyond, max_tpr, at_fpr))
    answer = worst(answers)
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "answer": answer, "thresholds": [asdict(a) for a in answers]}))
    else:
        for found in answers:
            typer.echo(f"{found.answer}: {found.what} at most {found.bound:g} ({found.reason})")
    raise typer.Exit(EXIT[answer])
