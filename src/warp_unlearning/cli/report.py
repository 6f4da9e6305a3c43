"""`warp report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import Json


def report(
    results: Annotated[Path, typer.Argument(help="The results.json or audit.json of an audit, or its folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; by default beside the results.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="A folder for the figures as PNG and PDF.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the results of an audit as one HTML file that needs no network and no script."""
    from ..report.write import write_report

    written = write_report(results, out=out, figures=figures)
    if as_json:
        typer.echo(json.dumps({"report": str(written.page), "figures": [str(path) for path in written.figures]}))
        return
    typer.echo(f"written to {written.page}")
    if figures is not None:
        typer.echo(f"{len(written.figures)} figures written to {figures}")
