"""`warp demo`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from .options import Json


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="Keep the runs in this folder.")] = None,
    report: Annotated[Path, typer.Option(help="Where the report of the audit goes.")] = Path("warp-demo.html"),
    audit: Annotated[
        bool, typer.Option(help="Audit all methods with shadow models, which takes most of the time.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Train on digits, forget a class by six methods, alone and defended, compare with retraining, and attack them all.

    Takes about five minutes on two cores, two without the audit.
    """
    if out is not None:
        _run(out, report if audit else None, seed, as_json)
        typer.echo(
            f"the runs are in {out}; try `warp compare {out}/original {out}/ngp --retrained {out}/retrain`", err=True
        )
        return
    with TemporaryDirectory(prefix="warp-demo-") as folder:
        _run(Path(folder), report if audit else None, seed, as_json)


def _run(folder: Path, report: Path | None, seed: int, as_json: bool) -> None:
    from ..workflows.demo import run_demo
    from .audit_shadow import show
    from .demo_report import show_demo

    result = run_demo(folder, seed=seed, say=_say)
    if not as_json:
        show_demo(result)
    found = None
    if report is not None:
        from ..workflows.demo_audit import audit_demo

        found = audit_demo(folder / "audit", report, seed=seed, say=_say)
    if as_json:
        plain = result.as_json() | {"audit": None if found is None else found.results}
        typer.echo(json.dumps(plain, indent=2))
    elif found is not None:
        show(found.results)
        typer.echo(f"the report is {found.report}")


def _say(text: str) -> None:
    typer.echo(text, err=True)
