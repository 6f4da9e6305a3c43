"""`warp train`: train one model into a run. A run that was killed goes on from its checkpoint, to the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, Options, RunFolder, takes_options
from .show import Progress, finish, points

if TYPE_CHECKING:
    from torch import nn

    from ..config import Config
    from ..runs.directory import RunDirectory
    from ..training.prior import PriorTraining
    from ..training.training import Training
    from ..training.update import Update

CHECKPOINT = "checkpoint.safetensors"
_VALIDATION = "Share of the rows set aside for methods that choose by it."


@takes_options
def train(
    out: RunFolder,
    *,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows.")] = None,
    validation: Annotated[float | None, typer.Option(help=_VALIDATION)] = None,
    options: Options,
    as_json: Json = False,
) -> None:
    """Train a network, to have something to forget from."""
    from ..config import resolve

    config = resolve(file=options.config, overrides=options.settings(training__epochs=epochs, validation=validation))
    with Progress("train") as progress:
        results = train_run(config, out, options=options, watch=progress)
    scores = ", ".join(f"{what} {points(value)}" for what, value in results["accuracy"].items())
    line = f"trained {results['parameters']:,} parameters; right on {scores}"
    finish([line], results=results if as_json else None, out=out)


def train_run(
    config: Config,
    out: Path,
    *,
    options: Options | None = None,
    watch: Callable[[Update], None] = lambda update: None,
) -> dict[str, Any]:
    """Train, or go on, or do nothing where the run is complete; returns its results."""
    from ..data.table import VALIDATION
    from ..models.own import check_examples
    from ..randomness import Streams
    from ..report.schema import Trained
    from ..training.scoring import accuracy
    from ..training.training import Recipe, Training
    from .subject import new_subject, save_subject

    subject = new_subject(config, options or Options())
    parts = {"train": subject.known, "validation": subject.parts.rows(VALIDATION), "test": subject.parts.unseen}
    examples = {what: subject.examples(rows) for what, rows in parts.items() if len(rows)}
    model = subject.model.to(subject.device)
    check_examples(model, examples)
    run = subject.start_run(out, kind="train")
    if not run.complete:
        recipe = Recipe(**config.training.model_dump(exclude={"recipe"}))
        streams = Streams(config.seed, "training")
        training = Training(model, examples["train"], recipe=recipe, streams=streams, fill=subject.fill)
        train_to_end(training, training.model, run, config.checkpoint_seconds, watch)
        results = Trained(
            accuracy={what: accuracy(training.model, part) for what, part in examples.items()},
            counts={what: len(rows) for what, rows in parts.items()},
            parameters=sum(p.numel() for p in training.model.parameters()),
        )
        save_subject(run, subject, training.model, parts=subject.parts)
        run.write_json("results.json", results.model_dump())
        (run.path / CHECKPOINT).unlink(missing_ok=True)
        run.finish()
    return run.results(Trained).model_dump()


@contextmanager
def keep_diverged(run: RunDirectory, **header: object) -> Iterator[None]:
    """Write the last finite weights, where an error of divergence holds some, and say in the error where they are."""
    from ..errors import DivergedError
    from ..models.weights import save_weights
    from ..runs.directory import DIVERGED

    try:
        yield
    except DivergedError as error:
        if error.state:
            save_weights(run.path / DIVERGED, error.state, header=header)
            error.args = (f"{error.args[0]} (written to {run.path / DIVERGED})",)
        raise


def train_to_end(
    training: Training | PriorTraining,
    model: nn.Module,
    run: RunDirectory,
    seconds: float,
    watch: Callable[[Update], None],
) -> None:
    """Train `model` from the run's checkpoint on, if there is one, and write one after an epoch if the last is older
    than so many seconds. Where a loss diverges the run keeps the last finite weights.
    """
    from ..models.weights import read_weights, save_weights
    from ..unlearning.guard import Guard

    checkpoint = run.path / CHECKPOINT
    if checkpoint.exists():
        training.load_state(read_weights(checkpoint).state)
    advice = f"Lower the learning rate (training.lr={training.recipe.lr}), or look for extreme values in the data"
    guard, written = Guard(model, interval=50, advice=advice), monotonic()
    with keep_diverged(run, model=type(model).__name__):
        for update in training.updates():
            watch(update)
            guard.watch(update)
            if update.ends_epoch:
                guard.flush()
                if monotonic() - written >= seconds:
                    save_weights(checkpoint, training.state())
                    written = monotonic()
