"""`warp report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import Json


def report(
    results: Annotated[Path, typer.Argument(help="The results of an audit or a reconstruction, or their folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; by default beside the results.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="A folder for the figures as PNG and PDF.", show_default=False),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Show the forgotten images of a reconstruction, and what was rebuilt.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the results of an audit or a reconstruction as one HTML file that needs no network and no script."""
    from ..report.page import write_report

    written = write_report(results, out=out, figures=figures, images=images)
    if as_json:
        typer.echo(json.dumps({"report": str(written.page), "figures": [str(path) for path in written.figures]}))
        return
    typer.echo(f"written to {written.page}{'; it holds images of forgotten examples' if images else ''}")
    if figures is not None:
        typer.echo(f"{len(written.figures)} figures written to {figures}")
