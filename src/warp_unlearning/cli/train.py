"""`warp train`: train one model into a run. A run that was killed goes on from its checkpoint, to the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, Options, prepare, takes_options
from .show import Progress, finish, points, print_json

if TYPE_CHECKING:
    from torch import Tensor

    from ..config import Config
    from ..errors import DivergedError
    from ..runs.directory import RunDirectory
    from ..training.training import Training
    from ..training.update import Update

CHECKPOINT = "checkpoint.safetensors"


@takes_options
def train(
    out: Annotated[Path, typer.Option("--out", help="Folder for the run; a stopped run there is taken up again.")],
    *,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of the rows set aside for methods that choose by it.")
    ] = None,
    options: Options,
    as_json: Json = False,
) -> None:
    """Train a network, to have something to forget from."""
    from ..config import resolve

    prepare(options.threads)
    config = resolve(file=options.config, overrides=options.settings(training__epochs=epochs, validation=validation))
    with Progress("train") as progress:
        results = train_run(config, out, options=options, watch=progress)
    if as_json:
        print_json(out / "results.json")
        return
    scores = ", ".join(f"{what} {points(value)}" for what, value in results["accuracy"].items())
    finish([f"trained {results['parameters']:,} parameters; right on {scores}"], exit_code=0, out=out)


def train_run(
    config: Config,
    out: Path,
    *,
    options: Options | None = None,
    watch: Callable[[Update], None] = lambda update: None,
) -> dict[str, Any]:
    """Train, or go on, or do nothing where the run is complete; returns its results."""
    from ..config import RESOLVED, as_plain
    from ..data.table import VALIDATION
    from ..errors import DivergedError
    from ..models.own import check_examples
    from ..randomness import Streams
    from ..report.schema import Trained
    from ..runs.directory import start_run
    from ..training.recipe import Recipe
    from ..training.scoring import accuracy
    from ..training.training import Training
    from .subject import PLACES, new_subject, save_subject

    subject = new_subject(config, options or Options())
    parts = {"train": subject.known, "validation": subject.parts.rows(VALIDATION), "test": subject.parts.unseen}
    examples = {what: subject.examples(rows) for what, rows in parts.items() if len(rows)}
    model = subject.model.to(subject.device)
    check_examples(model, examples)
    run = start_run(out, kind="train", config=as_plain(config) | {RESOLVED: subject.identity()}, places=PLACES)
    if run.complete:
        return run.results(Trained).model_dump()
    training = Training(
        model,
        examples["train"],
        recipe=Recipe(**config.training.model_dump(exclude={"recipe"})),
        streams=Streams(config.seed, "training"),
        fill=subject.fill,
    )
    try:
        _train(training, run, config.checkpoint_seconds, watch)
    except DivergedError as error:
        keep_diverged(run, error, header={"model": config.model.name})
        raise
    results = {
        "schema_version": 1,
        "kind": "train",
        "accuracy": {what: accuracy(training.model, part) for what, part in examples.items()},
        "counts": {what: len(rows) for what, rows in parts.items()},
        "parameters": sum(p.numel() for p in training.model.parameters()),
    }
    save_subject(run, subject, training.model, parts=subject.parts)
    run.write_json("results.json", results)
    (run.path / CHECKPOINT).unlink(missing_ok=True)
    run.finish()
    return results


def keep_diverged(run: RunDirectory, error: DivergedError, *, header: Mapping[str, object]) -> None:
    """Write the last finite weights, where the error holds some, and say in the error where they are."""
    from ..models.weights import save_weights
    from ..runs.directory import DIVERGED

    if error.state:
        save_weights(run.path / DIVERGED, error.state, header=header)
        error.args = (f"{error.args[0]} (written to {run.path / DIVERGED})",)


def _train(training: Training, run: RunDirectory, seconds: float, watch: Callable[[Update], None]) -> None:
    from ..errors import DivergedError
    from ..models.weights import read_weights, save_weights
    from ..training.training import check_finite

    checkpoint = run.path / CHECKPOINT
    if checkpoint.exists():
        training.load_state(read_weights(checkpoint).state)
    recent: list[Tensor] = []
    finite: dict[str, Tensor] = {}
    written = monotonic()
    for update in training.updates():
        recent.append(update.losses["train"])
        watch(update)
        if not update.ends_epoch and len(recent) < 50:
            continue
        state = training.model.state_dict()
        try:
            check_finite(recent, training, update.step)
            # The update after the last finite loss may have broken the weights.
            if update.ends_epoch and not all(bool(value.isfinite().all()) for value in state.values()):
                rate = f"lower the learning rate (lr={training.recipe.lr})"
                raise DivergedError(
                    f"a weight is no longer finite after update {update.step}; {rate}", state={}, update=update.step
                )
        except DivergedError as error:
            error.state = finite
            raise
        recent.clear()
        if update.ends_epoch:
            finite = {name: tensor.clone() for name, tensor in state.items()}
            if monotonic() - written >= seconds:
                save_weights(checkpoint, training.state())
                written = monotonic()
