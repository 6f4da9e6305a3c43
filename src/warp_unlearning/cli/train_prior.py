"""`warp train-prior`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigFile, Json, Overrides, Threads, assign, prepare


def train_prior(
    out: Annotated[Path, typer.Option("--out", help="Folder for the run; a stopped run there is taken up again.")],
    for_run: Annotated[
        Path | None,
        typer.Option("--for", help="A run of `warp unlearn`: its data, without what it forgot."),
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(help="An .npy file of positions in the training part not to learn from; several times for more."),
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    data: Annotated[str | None, typer.Option(help="digits, cifar10, fashion_mnist, npz or folder.")] = None,
    data_path: Annotated[Path | None, typer.Option(help="Where the data are.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    conditional: Annotated[bool | None, typer.Option(help="Whether the generator takes labels.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random draw.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Write a checkpoint at most this often.")] = 30.0,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train a generator of images for attacks that reconstruct, on images that are not attacked."""
    from ..models.generator import PRIOR
    from ..workflows.train_prior import PriorRequest, train_prior_run
    from .show import Progress

    prepare(threads)
    settings = assign(
        override,
        data__name=data,
        data__path=data_path,
        training__epochs=epochs,
        generator__conditional=conditional,
        seed=seed,
        device=device,
        for_run=for_run,
    )
    if exclude:
        settings.append(f"exclude={json.dumps([str(path) for path in exclude], ensure_ascii=False)}")
    with Progress("train-prior") as progress:
        metrics = train_prior_run(PriorRequest(out, config, settings, checkpoint_seconds), watch=progress)
    if as_json:
        typer.echo(json.dumps(metrics, indent=2))
        return
    counts = metrics["counts"]
    typer.echo(
        f"trained {metrics['parameters']:,} parameters on {counts['train']:,} images; {counts['excluded']:,} left out"
    )
    for name, scores in metrics["psnr"].items():
        what = "images held out" if name == "held_out" else "images learned from"
        typer.echo(f"{what}: PSNR {scores['prior']:.2f} dB, of the mean image {scores['mean_image']:.2f} dB")
    if counts["excluded"] == 0:
        typer.echo("nothing was left out: no image of the training part can be attacked with this prior")
    typer.echo(f"written to {out}; the generator is {out / PRIOR}")
