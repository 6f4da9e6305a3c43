"""`warp bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import Json


def bench(
    out: Annotated[Path, typer.Option("--out", help="Folder for the numbers.")],
    size: Annotated[
        str, typer.Option(help="small (digits), small-images (Fashion-MNIST), paper (CIFAR-10) or auto.")
    ] = "auto",
    data_path: Annotated[Path | None, typer.Option(help="Folder of the images, for all sizes but small.")] = None,
    at_once: Annotated[
        list[int] | None, typer.Option(help="Models at once on a GPU; several times for more sizes.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes of the plain loop's loader.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Json = False,
) -> None:
    """Time training and the gradient test here, each beside a plain PyTorch loop in the same run.

    What defences cost is a study: `warp reproduce runtime`.
    """
    from ..runs.local import use_threads
    from ..workflows.bench import TABLE, BenchRequest
    from ..workflows.bench import bench as measure

    use_threads(1)
    results = measure(BenchRequest(out, size, data_path, tuple(at_once or (1, 8)), workers, device=device))
    typer.echo(json.dumps(results, indent=2) if as_json else (out / TABLE).read_text())
