"""Train a generator on the images at hand, less those that are to be attacked, into a run directory.

Left out are the positions in the files that `exclude` names, everything that the model of the run `for_run` does not
know any more, and exact copies of either. What was learned from is written into the weight file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cli.subject import ROWS, open_table
from ..cli.train import keep_diverged
from ..config import RESOLVED, PriorConfig, as_plain, resolve_as
from ..data.examples import TensorExamples
from ..data.files import array_digest, write_atomically
from ..data.preprocess import ImageData, Preprocess, image_data, image_digests, pixels_of
from ..data.sampling import draw_per_class
from ..data.table import FORGET, FORGOTTEN, Index, Parts, Table, find, read_request
from ..errors import DataError, DivergedError, InputError
from ..models.generator import PRIOR, ConvGenerator, save_prior, seen_header
from ..models.modes import choose_device
from ..models.weights import model_digest, read_weights, save_weights
from ..randomness import Streams
from ..runs.directory import RunDirectory, open_run, start_run
from ..training.prior import PriorRecipe, PriorTraining
from ..training.update import Update

CHECKPOINT = "checkpoint.safetensors"

_SMALL = 16
"""Height and width up to which images are small."""


@dataclass(frozen=True)
class PriorRequest:
    """What to train on and where to put it; `overrides` go over the file, and both over the data of `for_run`. A
    checkpoint is written after an epoch if the last is older than so many seconds.
    """

    out: Path
    config_file: Path | None = None
    overrides: Sequence[str] = ()
    checkpoint_seconds: float = 30.0


def train_prior_run(request: PriorRequest, *, watch: Callable[[Update], None] = lambda update: None) -> dict[str, Any]:
    """Train, or go on, or do nothing where the run is complete; returns its metrics."""
    config = _resolved(request)
    table = open_table(config)
    scale = config.data.scale
    preprocess = None if scale is None else Preprocess(scale, layout=table.layout)
    data = image_data(table, preprocess, test=table.unseen)
    images = _images(data)
    excluded = _excluded(config, table, images)
    known, held = _parts(config, table, images, excluded)
    device = choose_device(config.device)
    streams = Streams(config.seed, "prior")
    training = PriorTraining(
        _generator(config, data),
        images.select(torch.from_numpy(known)).to(device),
        recipe=PriorRecipe(**config.training.model_dump()),
        streams=streams,
    )
    found = {"data": data.digest, "excluded": array_digest(excluded), "initial_model": model_digest(training.pair)}
    run = start_run(request.out, kind="prior", config=as_plain(config) | {RESOLVED: found})
    if run.complete:
        return run.read_json("metrics.json")
    try:
        _train(training, run, request.checkpoint_seconds, watch)
    except DivergedError as error:
        keep_diverged(run, error, header={"kind": "diverged prior"})
        raise
    about = seen_header(images.x[known], data=data.name, data_digest=data.digest)
    save_prior(run.path / PRIOR, training.generator, header={**about, "seed": config.seed})
    metrics = _metrics(training, images, known, held, excluded)
    for name, index in (("train", known), ("held_out", held), ("excluded", excluded)):
        write_atomically(run.path / f"{name}.npy", _npy(index))
    run.write_json("metrics.json", metrics)
    (run.path / CHECKPOINT).unlink(missing_ok=True)
    run.finish()
    return metrics


def _resolved(request: PriorRequest) -> PriorConfig:
    """The configuration, whose data are those of `for_run` unless it names others."""
    config = resolve_as(PriorConfig, file=request.config_file, overrides=request.overrides)
    if config.for_run is None:
        return config
    run = open_run(config.for_run)
    if run.kind != "unlearn":
        raise InputError(
            f"{config.for_run} is a run of kind {run.kind!r}, which forgot nothing; give one of `warp unlearn`, or the "
            "positions to leave out by --exclude"
        )
    base = {"data": run.config().get("data", {})}
    return resolve_as(PriorConfig, base=base, file=request.config_file, overrides=request.overrides)


def _images(data: ImageData) -> TensorExamples:
    """The training part as images, if their values lie in [0, 1]."""
    x = pixels_of(data).images(data.train.x)
    low, high = float(x.min()), float(x.max())
    if low < -1e-3 or high > 1 + 1e-3:
        raise DataError(
            f"{data.name} has values from {low:.3g} to {high:.3g} and images lie in [0, 1]; save them as 8-bit images "
            "or scale them there"
        )
    return TensorExamples(x.clamp(0, 1), data.train.y)


def _excluded(config: PriorConfig, table: Table, images: TensorExamples) -> Index:
    """Sorted positions not to learn from, exact copies of any of them included."""
    found = [find(read_request(path), table) for path in config.exclude]
    if config.for_run is not None:
        found.append(_forgotten(config.for_run, table))
    named: Index = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found]))
    if len(named) == 0:
        return named
    digests = np.array(image_digests(images.x))
    return np.flatnonzero(np.isin(digests, digests[named])).astype(np.int64)


def _forgotten(path: Path, table: Table) -> Index:
    """Training rows that requests to the model of an unlearning asked to forget, earlier ones included."""
    try:
        parts = Parts.load(path / ROWS).align(table)
    except DataError as error:
        raise DataError(
            f"{path} is about other data than are learned from, so its rows say nothing here ({error}); leave out the "
            "data options"
        ) from error
    gone = np.concatenate([parts.rows(FORGET), parts.rows(FORGOTTEN)])
    return np.sort(gone[gone < table.train])


def _parts(config: PriorConfig, table: Table, images: TensorExamples, excluded: Index) -> tuple[Index, Index]:
    """Rows to learn from and to measure on, the second drawn per class; no test rows, which were held out from it."""
    rest = np.setdiff1d(table.learned, excluded)
    y = images.y.numpy()[rest]
    drawn = draw_per_class(
        y, count=round(config.held_out * len(rest)), generator=Streams(config.seed, "prior").generator("held out")
    )
    known, held = np.setdiff1d(rest, rest[drawn]), rest[drawn]
    if len(known) < 2:
        raise InputError(
            f"{len(excluded)} of {len(table.learned)} images are left out and {len(held)} held out, which leaves "
            f"{len(known)} to learn from; leave out or hold out fewer"
        )
    return known, held


def _generator(config: PriorConfig, data: ImageData) -> ConvGenerator:
    shape = pixels_of(data).shape
    small = max(shape[1:]) <= _SMALL
    about = config.generator
    return ConvGenerator(
        shape=shape,
        latent=about.latent or (32 if small else 128),
        width=about.width or (16 if small else 64),
        classes=len(data.classes) if about.conditional else None,
    )


def _train(training: PriorTraining, run: RunDirectory, seconds: float, watch: Callable[[Update], None]) -> None:
    checkpoint = run.path / CHECKPOINT
    if checkpoint.exists():
        training.load_state(read_weights(checkpoint).state)
    recent: list[Tensor] = []
    finite: dict[str, Tensor] = {}
    written = monotonic()
    for update in training.updates():
        recent.append(update.losses["prior"])
        watch(update)
        if update.ends_epoch or len(recent) == 50:
            try:
                _check(recent, training.recipe.lr, update.step)
            except DivergedError as error:
                error.state = finite
                raise
            recent.clear()
        if update.ends_epoch:
            finite = {name: tensor.clone() for name, tensor in training.pair.state_dict().items()}
        if update.ends_epoch and monotonic() - written >= seconds:
            save_weights(checkpoint, training.state())
            written = monotonic()


def _check(recent: Sequence[Tensor], lr: float, step: int) -> None:
    value = float(torch.stack(list(recent)).mean())
    if not isfinite(value):
        raise DivergedError(
            f"the loss of the prior is {value} near update {step}; lower the learning rate (training.lr={lr})",
            state={},
            update=step,
        )


def _metrics(
    training: PriorTraining, images: TensorExamples, known: Index, held: Index, excluded: Index
) -> dict[str, Any]:
    device = training.images.x.device
    mean = training.images.x.mean(0, keepdim=True)
    scores: dict[str, Mapping[str, float]] = {}
    for name, index in (("train", known), ("held_out", held)):
        if len(index):
            part = images.select(torch.from_numpy(index)).to(device)
            drawn = training.reconstruct(part)
            scores[name] = {"prior": _psnr(drawn, part.x), "mean_image": _psnr(mean.expand_as(part.x), part.x)}
    return {
        "schema_version": 1,
        "psnr": scores,
        "counts": {"train": len(known), "held_out": len(held), "excluded": len(excluded)},
        "parameters": sum(p.numel() for p in training.generator.parameters()),
    }


def _psnr(drawn: Tensor, images: Tensor) -> float:
    """The mean over images of −10 log₁₀(mean squared difference), in dB; a difference below 1e-10 counts as that."""
    squares = (drawn - images).double().square().flatten(1).mean(1).clamp_min(1e-10)
    return float(-10 * squares.log10().mean())


def _npy(array: Index) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
