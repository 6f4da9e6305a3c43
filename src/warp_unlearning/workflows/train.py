"""Train one model into a run directory. A run that was killed goes on from its last checkpoint, to the same weights."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config.resolve import RESOLVED, as_plain
from ..config.schema import Config
from ..data.files import write_atomically
from ..data.preprocess import ImageData
from ..data.table import Index
from ..errors import DivergedError
from ..models.digest import model_digest
from ..models.weights import read_weights, save_weights
from ..randomness import Streams
from ..runs.directory import DIVERGED, RunDirectory, start_run
from ..training.recipe import Recipe
from ..training.scoring import accuracy
from ..training.training import Training, check_finite
from ..training.update import Update
from ..unlearning.checks import check_examples
from .source import Builder, choose_device, header, load_examples, make_model, validation_split

CHECKPOINT = "checkpoint.safetensors"
Watch = Callable[[Update], None]


@dataclass(frozen=True)
class TrainRequest:
    """What to train and where to put it. A checkpoint is written after an epoch if the last is older than so many
    seconds.
    """

    config: Config
    out: Path
    checkpoint_seconds: float = 30.0


def train_run(
    request: TrainRequest, *, builder: Builder | None = None, watch: Watch = lambda update: None
) -> dict[str, Any]:
    """Train, or go on, or do nothing where the run is complete; returns its metrics."""
    config = request.config
    data = load_examples(config)
    model = make_model(config, data, builder)
    known, held = validation_split(config, data)
    device = choose_device(config.device)
    examples = data.train.select(torch.from_numpy(known))
    check_examples(model, {"training": examples, "test": data.test})
    found = {"data": data.digest, "initial_model": model_digest(model)}
    run = start_run(request.out, kind="train", config=as_plain(config) | {RESOLVED: found})
    if run.complete:
        return run.read_json("metrics.json")
    training = Training(
        model.to(device),
        examples.to(device),
        recipe=Recipe(**config.training.model_dump(exclude={"recipe"})),
        streams=Streams(config.seed, "training"),
        fill=data.fill,
    )
    try:
        _train(training, run, request.checkpoint_seconds, watch)
    except DivergedError as error:
        keep_diverged(run, error, header(config, data, known))
        raise
    metrics = _metrics(training.model, data, known, held, device)
    save_weights(run.path / "model.safetensors", training.model, header=header(config, data, known))
    for name, index in (("train", known), ("validation", held)):
        write_atomically(run.path / f"{name}.npy", _npy(index))
    run.write_json("metrics.json", metrics)
    (run.path / CHECKPOINT).unlink(missing_ok=True)
    run.finish()
    return metrics


def _train(training: Training, run: RunDirectory, seconds: float, watch: Watch) -> None:
    checkpoint = run.path / CHECKPOINT
    if checkpoint.exists():
        training.load_state(read_weights(checkpoint).state)
    recent: list[Tensor] = []
    finite: dict[str, Tensor] = {}
    written = monotonic()
    for update in training.updates():
        recent.append(update.losses["train"])
        watch(update)
        if update.ends_epoch or len(recent) == 50:
            _check(recent, training, update, finite)
            recent.clear()
        if update.ends_epoch:
            finite = {n: t.clone() for n, t in training.model.state_dict().items()}
        if update.ends_epoch and monotonic() - written >= seconds:
            save_weights(checkpoint, training.state())
            written = monotonic()


def _check(recent: list[Tensor], training: Training, update: Update, finite: dict[str, Tensor]) -> None:
    """Raise, with the weights of the last finite epoch, where a loss or, at an epoch's end, a weight is not finite."""
    try:
        check_finite(recent, training, update.step)
        if update.ends_epoch:
            _check_weights(training, update.step)
    except DivergedError as error:
        error.state = finite
        raise


def keep_diverged(run: RunDirectory, error: DivergedError, about: dict[str, object]) -> None:
    """Write the last finite weights, where the error holds some, and say in the error where they are."""
    if error.state:
        save_weights(run.path / DIVERGED, error.state, header=about)
        error.args = (f"{error.args[0]} (written to {run.path / DIVERGED})",)


def _check_weights(training: Training, step: int) -> None:
    """Raise where the update after the last finite loss left weights that are not finite."""
    if not all(bool(value.isfinite().all()) for value in training.model.state_dict().values()):
        raise DivergedError(
            f"a weight is no longer finite after update {step}; lower the learning rate (lr={training.recipe.lr})",
            state={},
            update=step,
        )


def _metrics(model: nn.Module, data: ImageData, known: Index, held: Index, device: torch.device) -> dict[str, Any]:
    parts = {
        "train": data.train.select(torch.from_numpy(known)),
        "validation": data.train.select(torch.from_numpy(held)),
        "test": data.test,
    }
    scores = {what: accuracy(model, part.to(device)) for what, part in parts.items() if len(part)}
    return {
        "schema_version": 1,
        "accuracy": scores,
        "counts": {what: len(part) for what, part in parts.items()},
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _npy(array: Index) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
