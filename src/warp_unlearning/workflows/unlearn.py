"""Carry out one request to forget, from a model to a run directory with a new model and a deletion record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from ..config.resolve import RESOLVED, as_plain
from ..config.schema import ForgetConfig
from ..data.examples import TensorExamples
from ..data.split_folder import save_split
from ..data.splits import ForgetRule, IndexArray, Indices, RandomFraction, Split, WholeClass, make_split
from ..errors import DataError, DivergedError, InputError
from ..evaluation.compare import Comparison, compare
from ..methods.protocol import Method, options
from ..methods.recipes import SMALL_DATA
from ..methods.registry import make_method, method_classes
from ..models.digest import model_digest
from ..models.weights import save_weights
from ..randomness import Streams
from ..runs.directory import RunDirectory, start_run
from ..unlearning.checks import copies_of
from ..unlearning.driver import Unlearned, unlearn
from ..unlearning.record import DeletionRecord, describe
from .source import Builder, Source, choose_device, header, load_source, read_indices
from .train import Watch

SMALL = 5_000


@dataclass(frozen=True)
class UnlearnRequest:
    """Which model forgets what, how, and where the result goes."""

    source: Path
    out: Path
    config_file: Path | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class UnlearnOutcome:
    """What was done: the summary that is printed, and notes on what was decided on the way."""

    summary: dict[str, Any]
    notes: tuple[str, ...] = ()


def unlearn_run(
    request: UnlearnRequest, *, builder: Builder | None = None, watch: Watch = lambda update: None
) -> UnlearnOutcome:
    """Unlearn, or do nothing where the run is complete."""
    source = load_source(request.source, config_file=request.config_file, overrides=request.overrides, builder=builder)
    rule = forget_rule(source.config.forget, source)
    split, notes = choose_split(source, rule)
    method = choose_method(source)
    device = choose_device(source.config.device)
    found = {"method": describe(method), "from_model": model_digest(source.model), "split": split.digest}
    run = start_run(request.out, kind="unlearn", config=as_plain(source.config) | {RESOLVED: _plain(found)})
    if not run.complete:
        _carry_out(source, split, rule, method, run, device, watch)
    return UnlearnOutcome(run.read_json("summary.json"), notes)


def forget_rule(config: ForgetConfig, source: Source) -> ForgetRule:
    """The rule a configuration gives; exactly one of the three ways must be set."""
    given = {k: v for k, v in config.model_dump().items() if v is not None}
    if len(given) != 1:
        what = "nothing says what to forget" if not given else f"{' and '.join(given)} are both set"
        raise InputError(f"{what}; give one of forget.indices, forget.label and forget.fraction")
    if config.fraction is not None:
        return RandomFraction(config.fraction)
    if config.label is not None:
        return WholeClass(config.label)
    assert config.indices is not None
    return Indices(read_indices(config.indices, count=len(source.data.train), what="forget"))


def choose_split(source: Source, rule: ForgetRule) -> tuple[Split, tuple[str, ...]]:
    """Forget and retain sets among what the model still knows. Exact copies of forgotten examples are not retained."""
    labels = source.data.train.y.cpu().numpy()[source.known]
    if isinstance(rule, Indices):
        _check_known(rule.array, source)
        local: ForgetRule = Indices(np.searchsorted(source.known, rule.array))
    else:
        local = rule
    generator = Streams(source.config.seed).generator("forget", len(source.record.deletions))
    drawn = make_split(labels, forget=local, validation=0.0, test_count=len(source.data.test), generator=generator)
    forget, retain = source.known[drawn.forget], source.known[drawn.retain]
    copies = copies_of(*(source.data.train.select(torch.from_numpy(i)) for i in (forget, retain))).numpy()
    notes: tuple[str, ...] = ()
    if len(copies):
        notes = (f"{len(copies)} retained examples are exact copies of forgotten ones and are left out",)
    return Split(forget, np.delete(retain, copies), source.validation, drawn.test), notes


def _check_known(index: IndexArray, source: Source) -> None:
    unknown = np.setdiff1d(index, source.known)
    if len(unknown):
        why = "is in the validation set" if unknown[0] in source.validation else "was forgotten already"
        raise DataError(
            f"the model never learned from, or no longer knows, {len(unknown)} of the examples to forget (first: "
            f"{unknown[0]}, which {why}); remove them from the indices"
        )


def choose_method(source: Source) -> Method:
    """The method of the configuration: the recipe's settings, then the options. References that train take the
    training's.
    """
    about, training = source.config.method, source.config.training
    recipe = about.recipe if about.recipe != "auto" else "small" if len(source.data.train) < SMALL else "published"
    settings: dict[str, Any] = dict(SMALL_DATA.get(about.name, {})) if recipe == "small" else {}
    if about.name == "retrain":
        settings = training.model_dump() | {"fill": source.data.fill}
    given = _tupled(about.options)
    _check_types(about.name, given)
    return make_method(about.name, **(settings | given))


def _check_types(name: str, given: Mapping[str, Any]) -> None:
    """Raise where an option that the method has is not of the type the method declares."""
    method = method_classes().get(name)
    if method is None:
        return
    hints = get_type_hints(method)
    for key in sorted(given.keys() & {o.name for o in options(method)}):
        try:
            TypeAdapter(hints[key]).validate_python(given[key], strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise InputError(
                f"{name}: {key} is {given[key]!r}: {reason}; `warp methods {name}` lists the options"
            ) from error


def _tupled(options: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}


def _carry_out(
    source: Source,
    split: Split,
    rule: ForgetRule,
    method: Method,
    run: RunDirectory,
    device: torch.device,
    watch: Watch,
) -> None:
    sets = {name: _part(source, getattr(split, name), device) for name in ("forget", "retain", "validation")}
    try:
        result = unlearn(
            source.model.to(device),
            forget=sets["forget"],
            retain=sets["retain"],
            validation=sets["validation"] if len(sets["validation"]) else None,
            method=method,
            seed=source.config.seed,
            on_update=watch,
        )
    except DivergedError as error:
        save_weights(run.path / "diverged.safetensors", error.state, header=header(source.config, source.data))
        raise
    comparison = compare(
        source.model, result.model, forget=sets["forget"], retain=sets["retain"], test=source.data.test
    )
    _write(source, split, rule, result, comparison, run)


def _part(source: Source, index: IndexArray, device: torch.device) -> TensorExamples:
    return source.data.train.select(torch.from_numpy(index)).to(device)


def _write(
    source: Source, split: Split, rule: ForgetRule, result: Unlearned, comparison: Comparison, run: RunDirectory
) -> None:
    accuracy = {
        name: {what: estimate.value for what, estimate in scores.accuracy.items()}
        for name, scores in comparison.models.items()
    }
    deletion = replace(result.record.deletions[0], verdicts={"accuracy": accuracy, "split_digest": split.digest})
    record: DeletionRecord = source.record.then(deletion)
    save_weights(run.path / "model.safetensors", result.model, header=header(source.config, source.data))
    save_split(split, run.path / "split", rule=rule)
    run.write_json("history.json", {"schema_version": 1, "updates": result.history})
    run.write_json("record.json", record.as_json())
    summary = {
        "schema_version": 1,
        "method": deletion.method,
        "forgotten": deletion.requested,
        "retained": deletion.retained,
        "updates": len(result.history),
        "seconds": result.seconds,
        "requests_so_far": len(record.deletions),
        "accuracy": accuracy,
        "unlearned_model": deletion.unlearned,
    }
    run.write_json("summary.json", summary)
    run.finish()


def _plain(data: Any) -> Any:
    """Tuples as lists, so that what is written to YAML is read back the same."""
    if isinstance(data, dict):
        return {k: _plain(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(v) for v in data]
    return data
