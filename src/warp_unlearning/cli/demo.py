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
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Train on digits, forget a class by six methods, alone and defended, and compare with retraining.

    Takes two to three minutes.
    """
    from ..workflows.demo import run_demo
    from .demo_report import show_demo

    if out is not None:
        result = run_demo(out, seed=seed, say=_say)
    else:
        with TemporaryDirectory(prefix="warp-demo-") as folder:
            result = run_demo(Path(folder), seed=seed, say=_say)
    if as_json:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        show_demo(result)
    if out is not None:
        typer.echo(
            f"the runs are in {out}; try `warp evaluate {out}/original {out}/ngp --retrained {out}/retrain`", err=True
        )


def _say(text: str) -> None:
    typer.echo(text, err=True)
