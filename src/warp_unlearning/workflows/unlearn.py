"""Carry out one request to forget, from a model to a run directory with a new model and a deletion record."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from ..config.resolve import RESOLVED, as_plain
from ..config.schema import ForgetConfig
from ..data.examples import TensorExamples
from ..data.split_folder import save_split
from ..data.splits import ForgetRule, IndexArray, Indices, RandomFraction, Split, WholeClass, make_split
from ..defense.base import Defense
from ..errors import DataError, DivergedError, InputError, WarpWarning
from ..methods.protocol import Method, options
from ..methods.recipes import SMALL_DATA
from ..methods.registry import make_method, method_classes
from ..models.digest import model_digest
from ..models.weights import save_weights
from ..randomness import Streams
from ..runs.directory import RunDirectory, start_run
from ..training.scoring import accuracy
from ..unlearning.checks import copies_of
from ..unlearning.driver import Unlearned, unlearn
from ..unlearning.judge import ModelComparison, compare
from ..unlearning.record import DeletionRecord, describe, describe_defense
from .defense import choose_defense, defense_summary, plain_teleports
from .source import Builder, Source, choose_device, header, load_source, read_indices
from .train import Watch, keep_diverged

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
    method, settings = choose_method(source)
    defense = choose_defense(source.config.defense)
    device = choose_device(source.config.device)
    found = {
        "method": describe(method),
        "defense": describe_defense(defense),
        "from_model": model_digest(source.model),
        "split": split.digest,
    }
    run = start_run(request.out, kind="unlearn", config=as_plain(source.config) | {RESOLVED: _plain(found)})
    if not run.complete:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WarpWarning)
            _carry_out(source, split, rule, method, defense, run, device, watch)
        if settings:
            notes += (f"settings for small data: {settings}; method.recipe=published takes the defaults instead",)
        notes += tuple(str(w.message) for w in caught if issubclass(w.category, WarpWarning))
    return UnlearnOutcome(run.read_json("summary.json"), notes)


def forget_rule(config: ForgetConfig, source: Source) -> ForgetRule:
    """The rule a configuration gives; exactly one of the three ways must be set."""
    given = [k for k in ("fraction", "label", "indices") if getattr(config, k) is not None]
    if len(given) != 1:
        what = "nothing says what to forget" if not given else f"{' and '.join(given)} are both set"
        raise InputError(
            f"{what}; give one of --forget FILE.npy (forget.indices), --forget-class N (forget.label) and "
            "--forget-fraction SHARE (forget.fraction)"
        )
    if config.fraction is not None:
        return RandomFraction(config.fraction)
    if config.label is not None:
        return WholeClass(config.label)
    assert config.indices is not None
    return Indices(read_indices(config.indices, count=len(source.data.train), what="forget"))


def choose_split(source: Source, rule: ForgetRule) -> tuple[Split, tuple[str, ...]]:
    """Forget and retain sets among what the model still knows. Exact copies of forgotten examples are not retained."""
    known = _known(source)
    labels = source.data.train.y.cpu().numpy()[known]
    if isinstance(rule, Indices):
        _check_known(rule.array, known, source.validation)
        local: ForgetRule = Indices(np.searchsorted(known, rule.array))
    else:
        local = rule
    generator = Streams(source.config.seed).generator("forget", len(source.record.deletions))
    drawn = make_split(labels, forget=local, validation=0.0, test_count=len(source.data.test), generator=generator)
    forget, retain = known[drawn.forget], known[drawn.retain]
    copies = copies_of(*(source.data.train.select(torch.from_numpy(i)) for i in (forget, retain))).numpy()
    notes: tuple[str, ...] = ()
    if len(copies):
        notes = (f"{len(copies)} retained examples are exact copies of forgotten ones and are left out",)
    if source.config.forget.again:
        forget = np.union1d(forget, forgotten_before(source))
    return Split(forget, np.delete(retain, copies), source.validation, drawn.test), notes


def forgotten_before(source: Source) -> IndexArray:
    """The examples that earlier requests asked to forget."""
    everything = np.arange(len(source.data.train), dtype=np.int64)
    if not source.record.deletions:
        return everything[:0]
    return np.setdiff1d(everything, np.union1d(_known(source), source.validation))


def _known(source: Source) -> IndexArray:
    if source.known is None:
        raise InputError(
            "which examples this model knows cannot be told from its weight file alone, since it has forgotten some; "
            "give the run directory of `warp unlearn` instead"
        )
    return source.known


def _check_known(index: IndexArray, known: IndexArray, validation: IndexArray) -> None:
    unknown = np.setdiff1d(index, known)
    if len(unknown):
        why = "is in the validation set" if unknown[0] in validation else "was forgotten already"
        raise DataError(
            f"the model never learned from, or no longer knows, {len(unknown)} of the examples to forget (first: "
            f"{unknown[0]}, which {why}); remove them from the indices. The run that trained it has in train.npy those "
            "that it learned from"
        )


def choose_method(source: Source) -> tuple[Method, str]:
    """The method of the configuration, and the settings for small data that it was given, as text.

    The recipe's settings come first, then the options. Retraining takes the settings of the training.
    """
    about, training = source.config.method, source.config.training
    recipe = about.recipe if about.recipe != "auto" else "small" if len(source.data.train) < SMALL else "published"
    settings: dict[str, Any] = dict(SMALL_DATA.get(about.name, {})) if recipe == "small" else {}
    given = _tupled(about.options)
    said = ", ".join(f"{key}={value}" for key, value in settings.items() if key not in given)
    if about.name == "retrain":
        settings = training.model_dump(exclude={"recipe"}) | {"fill": source.data.fill}
    _check_types(about.name, given)
    return make_method(about.name, **(settings | given)), said


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
    defense: Defense | None,
    run: RunDirectory,
    device: torch.device,
    watch: Watch,
) -> None:
    sets = {name: _part(source, getattr(split, name), device) for name in ("forget", "retain", "validation")}
    began = process_time()
    try:
        result = unlearn(
            source.model.to(device),
            forget=sets["forget"],
            retain=sets["retain"],
            validation=sets["validation"] if len(sets["validation"]) else None,
            method=method,
            defense=defense,
            seed=source.config.seed,
            defense_seed=source.config.defense.seed,
            on_update=watch,
        )
    except DivergedError as error:
        keep_diverged(run, error, header(source.config, source.data, _known(source)))
        raise
    measured: dict[str, Any] = {"cpu_seconds": process_time() - began, "defense": None}
    if defense is not None:
        measured["defense"] = defense_summary(source.config.defense, source.model, result, sets["forget"])
    comparison = compare(
        source.model, result.model, forget=sets["forget"], retain=sets["retain"], test=source.data.test
    )
    _write(source, split, rule, result, _accuracies(source, split, result.model, comparison), measured, run)


def _accuracies(
    source: Source, split: Split, after: nn.Module, comparison: ModelComparison
) -> dict[str, dict[str, float]]:
    """Accuracy of both models on each set; where whole classes are gone also on the test examples of the others, and
    where there were requests before also on what they forgot, which a later one may bring back.
    """
    found = {
        name: {what: estimate.value for what, estimate in scores.accuracy.items()}
        for name, scores in comparison.models.items()
    }
    y = source.data.train.y
    kept = torch.isin(source.data.test.y, y[torch.from_numpy(split.retain)]).nonzero().flatten()
    more = {
        "test, classes kept": source.data.test.select(kept) if 0 < len(kept) < len(source.data.test) else None,
        "forgotten before": source.data.train.select(torch.from_numpy(forgotten_before(source))),
    }
    device = next(after.parameters()).device
    for what, examples in more.items():
        if examples is not None and len(examples):
            for name, model in (("original", source.model), ("unlearned", after)):
                found[name][what] = accuracy(model, examples.to(device))
    return found


def _part(source: Source, index: IndexArray, device: torch.device) -> TensorExamples:
    return source.data.train.select(torch.from_numpy(index)).to(device)


def _write(
    source: Source,
    split: Split,
    rule: ForgetRule,
    result: Unlearned,
    accuracies: dict[str, dict[str, float]],
    measured: dict[str, Any],
    run: RunDirectory,
) -> None:
    done = result.record.deletions[0]
    deletion = replace(done, verdicts={**done.verdicts, "accuracy": accuracies, "split_digest": split.digest})
    record: DeletionRecord = source.record.then(deletion)
    save_weights(run.path / "model.safetensors", result.model, header=header(source.config, source.data, split.retain))
    save_split(split, run.path / "split", rule=rule)
    run.write_json("history.json", {"schema_version": 1, "updates": result.history})
    if measured["defense"] is not None:
        run.write_json("teleports.json", {"schema_version": 1, "teleports": plain_teleports(result)})
    run.write_json("record.json", record.as_json())
    summary = {
        "schema_version": 1,
        "method": deletion.method,
        "defense": measured["defense"],
        "forgotten": deletion.requested,
        "retained": deletion.retained,
        "updates": len(result.history),
        "seconds": result.seconds,
        "cpu_seconds": measured["cpu_seconds"],
        "requests_so_far": len(record.deletions),
        "accuracy": accuracies,
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
