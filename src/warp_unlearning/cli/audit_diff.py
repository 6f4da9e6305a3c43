"""`warp audit diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json

if TYPE_CHECKING:
    from ..workflows.audit_diff import AuditDiff


def diff(
    first: Annotated[Path, typer.Argument(help="The --out of `warp audit pair`, or its results.json.")],
    second: Annotated[Path, typer.Argument(help="The audit to compare with it.")],
    as_json: Json = False,
) -> None:
    """Show what changed between two audits; areas example by example where both are over the same examples."""
    from ..workflows.audit_diff import diff_audits

    found = diff_audits(first, second)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        _show(found)


def _show(found: AuditDiff) -> None:
    from .show import print_table

    for key, (before, after) in found.facts.items():
        typer.echo(f"{key}: {_short(before)} -> {_short(after)}")
    print_table(
        "AUC of every attack in both",
        ["attack", "first", "second", *(["second - first"] if found.paired else [])],
        [
            [c.name, str(c.first), str(c.second), *([] if not found.paired else [str(c.difference or "")])]
            for c in found.changes
        ],
    )
    if not found.paired:
        typer.echo("the audits are not over the same examples, or keep no scores: their differences have no interval")
    for name, rows in (("first", found.only_first), ("second", found.only_second)):
        if rows:
            typer.echo(f"only in the {name}: {', '.join(rows)}")


def _short(value: object) -> str:
    """Digests by their beginning; an estimate as a number with its interval."""
    if isinstance(value, dict) and {"value", "low", "high"} <= set(value):
        return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
    text = str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text
