"""`warp train-prior`: train a generator of images, for attacks that reconstruct, on images that are not attacked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import ConfigFile, Device, Json, Overrides, RunFolder, Threads, assign, prepare
from .show import Progress, finish
from .train import CHECKPOINT, train_to_end

if TYPE_CHECKING:
    from ..config import PriorConfig
    from ..data.table import Index, Table
    from ..report.schema import TrainedPrior
    from ..training.update import Update

_FOR = "A run of `warp unlearn`: its data, without what it forgot."
_EXCLUDE = "An .npy file of positions in the training part not to learn from; several times for more."
_NOTHING = "nothing was left out: no image of the training part can be attacked with this prior"
# Height and width up to which images are small.
_SMALL = 16


def train_prior(
    out: RunFolder,
    for_run: Annotated[Path | None, typer.Option("--for", help=_FOR)] = None,
    exclude: Annotated[list[Path] | None, typer.Option(help=_EXCLUDE)] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    data: Annotated[str | None, typer.Option(metavar="PATH|digits", help="Images, where --for is left out.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    conditional: Annotated[bool | None, typer.Option(help="Whether the generator takes labels.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random draw.")] = None,
    device: Device = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train a generator of images for attacks that reconstruct, on images that are not attacked.

    Left out are the rows that --exclude names, those that the run --for forgot, and exact copies of either. What was
    learned from is written into the weight file, as digests.
    """
    from ..models.generator import PRIOR

    prepare(threads)
    settings = assign(
        override,
        data__name="digits" if data == "digits" else None,
        data__path=None if data == "digits" else data,
        training__epochs=epochs,
        generator__conditional=conditional,
        seed=seed,
        device=device,
        for_run=for_run,
    )
    if exclude:
        settings.append(f"exclude={json.dumps([str(path) for path in exclude], ensure_ascii=False)}")
    with Progress("train-prior") as progress:
        results = train_prior_run(resolve_prior(config, settings), out, watch=progress)
    counts = results.counts
    lines = [
        f"trained {results.parameters:,} parameters on {counts['train']:,} images; {counts['excluded']:,} left out"
    ]
    for part, scores in results.psnr.items():
        what = "images held out" if part == "held_out" else "images learned from"
        lines.append(f"{what}: PSNR {scores['prior']:.2f} dB, of the mean image {scores['mean_image']:.2f} dB")
    lines += [] if counts["excluded"] else [_NOTHING]
    plain = results.model_dump(mode="json") if as_json else None
    finish([*lines, f"the generator is {out / PRIOR}"], results=plain, out=out)


def resolve_prior(file: Path | None, overrides: list[str]) -> PriorConfig:
    """The configuration, whose data are those of `for_run` unless it names others."""
    from ..config import PriorConfig, resolve_as
    from ..errors import InputError
    from ..runs.directory import open_run

    config = resolve_as(PriorConfig, file=file, overrides=overrides)
    if config.for_run is None:
        return config
    run = open_run(config.for_run)
    if run.kind != "unlearn":
        raise InputError(
            f"{config.for_run} is a run of kind {run.kind!r}, which forgot nothing; give one of `warp unlearn`, or the "
            "positions to leave out by --exclude"
        )
    return resolve_as(PriorConfig, base={"data": run.config().get("data", {})}, file=file, overrides=overrides)


def train_prior_run(
    config: PriorConfig, out: Path, *, seconds: float = 30.0, watch: Callable[[Update], None] = lambda update: None
) -> TrainedPrior:
    """Train, or go on from the last checkpoint, of which one is written every so many seconds, or do nothing where the
    run is complete; returns its results.
    """
    import numpy as np
    import torch

    from ..attacks.reconstruction.audit import unit_images
    from ..attacks.reconstruction.metrics import psnr
    from ..config import RESOLVED, as_plain
    from ..data.examples import TensorExamples
    from ..data.files import array_digest
    from ..data.preprocess import Preprocess, image_data, image_digests, pixels_of
    from ..data.sampling import draw_per_class
    from ..errors import InputError
    from ..models.generator import ConvGenerator, save_prior, seen_header
    from ..models.modes import choose_device
    from ..models.weights import model_digest
    from ..randomness import Streams
    from ..report.schema import TrainedPrior
    from ..runs.directory import start_run
    from ..training.prior import PriorRecipe, PriorTraining
    from .subject import open_table

    table = open_table(config)
    scale, streams = config.data.scale, Streams(config.seed, "prior")
    preprocess = None if scale is None else Preprocess(scale, layout=table.layout)
    data = image_data(table, preprocess, test=table.unseen)
    pixels = pixels_of(data)
    images = TensorExamples(unit_images(pixels, data.train.x), data.train.y)
    excluded, digests = _named(config, table), np.array(image_digests(images.x))
    excluded = np.flatnonzero(np.isin(digests, digests[excluded]))
    rest = np.setdiff1d(table.learned, excluded)
    count = round(config.held_out * len(rest))
    held = rest[draw_per_class(images.y.numpy()[rest], count=count, generator=streams.generator("held out"))]
    known = np.setdiff1d(rest, held)
    if len(known) < 2:
        raise InputError(
            f"{len(excluded)} of {len(table.learned)} images are left out and {len(held)} held out, which leaves "
            f"{len(known)} to learn from; leave out or hold out fewer"
        )
    about, small = config.generator, max(pixels.shape[1:]) <= _SMALL
    generator = ConvGenerator(
        shape=pixels.shape,
        latent=about.latent or (32 if small else 128),
        width=about.width or (16 if small else 64),
        classes=len(data.classes) if about.conditional else None,
    )
    sets = {"train": known, "held_out": held}
    device = choose_device(config.device)
    parts = {n: images.select(torch.from_numpy(rows)).to(device) for n, rows in sets.items() if len(rows)}
    recipe = PriorRecipe(**config.training.model_dump())
    training = PriorTraining(generator, parts["train"], recipe=recipe, streams=streams)
    found = {"data": data.digest, "excluded": array_digest(excluded), "initial_model": model_digest(training.pair)}
    run = start_run(out, kind="prior", config=as_plain(config) | {RESOLVED: found})
    if not run.complete:
        train_to_end(training, training.pair, run, seconds, watch)
        header = seen_header(images.x[known], data=data.name, data_digest=data.digest)
        save_prior(run.path / "prior.safetensors", generator, header={**header, "seed": config.seed})
        mean = parts["train"].x.mean(0, keepdim=True)
        scores: dict[Any, Any] = {
            name: {
                "prior": float(psnr(training.reconstruct(part), part.x).mean()),
                "mean_image": float(psnr(mean.expand_as(part.x), part.x).mean()),
            }
            for name, part in parts.items()
        }
        results = TrainedPrior(
            psnr=scores,
            counts={"train": len(known), "held_out": len(held), "excluded": len(excluded)},
            parameters=sum(p.numel() for p in generator.parameters()),
        )
        run.write_json("results.json", results.model_dump())
        (run.path / CHECKPOINT).unlink(missing_ok=True)
        run.finish()
    return run.results(TrainedPrior)


def _named(config: PriorConfig, table: Table) -> Index:
    """The rows that files name and that requests to the model of an unlearning asked to forget, earlier ones too."""
    import numpy as np

    from ..data.table import FORGET, FORGOTTEN, Parts, find, read_request
    from ..errors import DataError
    from .subject import ROWS

    found = [np.empty(0, dtype=np.int64), *(find(read_request(path), table) for path in config.exclude)]
    if config.for_run is not None:
        try:
            parts = Parts.load(config.for_run / ROWS).align(table)
        except DataError as error:
            raise DataError(
                f"{config.for_run} is about other data than are learned from, so its rows say nothing here ({error}); "
                "leave out the data options"
            ) from error
        gone = np.concatenate([parts.rows(FORGET), parts.rows(FORGOTTEN)])
        found.append(gone[gone < table.train])
    return np.unique(np.concatenate(found))
