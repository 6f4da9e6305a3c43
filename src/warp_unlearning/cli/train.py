"""`warp train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigFile, Json, Overrides, Threads, UserModel, assign, prepare


def train(
    out: Annotated[Path, typer.Option("--out", help="Folder for the run; a stopped run there is taken up again.")],
    config: ConfigFile = None,
    override: Overrides = None,
    data: Annotated[str | None, typer.Option(help="digits, cifar10, fashion_mnist, npz or folder.")] = None,
    data_path: Annotated[Path | None, typer.Option(help="Where the data are.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random draw.")] = None,
    model: UserModel = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Write a checkpoint at most this often.")] = 30.0,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train a model, to have something to forget from."""
    from ..config import resolve
    from ..workflows.train import TrainRequest, train_run
    from .progress import Progress

    builder = prepare(threads, model)
    settings = assign(
        override,
        data__name=data,
        data__path=data_path,
        training__epochs=epochs,
        seed=seed,
        device=device,
        model__name="custom" if model else None,
    )
    request = TrainRequest(resolve(file=config, overrides=settings), out, checkpoint_seconds)
    with Progress("train") as progress:
        metrics = train_run(request, builder=builder, watch=progress)
    if as_json:
        typer.echo(json.dumps(metrics, indent=2))
        return
    scores = ", ".join(f"{what} {value:.4f}" for what, value in metrics["accuracy"].items())
    typer.echo(f"trained {metrics['parameters']:,} parameters; accuracy: {scores}")
    typer.echo(f"written to {out}")
