"""The one door to a model and its data: opened once by a command, checked, and remembered by the run that it leaves.

A run holds `run.json`: the network (one of ours by name, or the user's FILE.py:build with its SHA-256), where the data
are, how raw rows become inputs, and what the run came from; `rows.npz`: the part of every row, by content; and the
weights. A remembered file is executed only where this user has named that very file on a command line before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import nn

from ..config import RESOLVED, Config, ModelConfig, PriorConfig, as_plain, resolve
from ..data.examples import Examples
from ..data.files import array_digest, as_path, to_json
from ..data.preprocess import ImageData, Preprocess, image_data, table_examples
from ..data.sampling import draw_per_class
from ..data.sources import load_table, recognise
from ..data.table import FORGET, FORGOTTEN, RETAIN, Index, Parts, Table, find, read_request
from ..errors import DataError, InputError, nearest
from ..models.modes import choose_device
from ..models.networks import MODELS, build_model, suggest_options
from ..models.own import file_digest, is_trusted, load_builder, load_function, trust
from ..models.weights import Weights, load_weights, model_digest, read_weights, save_as_given, save_weights
from ..randomness import Streams
from ..runs.directory import RunDirectory, open_run, start_run
from ..unlearning.record import DeletionRecord, versions
from .options import Options, absolute

WEIGHTS, ROWS, ABOUT, RECORD = "model.safetensors", "rows.npz", "run.json", "record.json"
RUN_SCHEMA = 2
# What may differ between two runs of one configuration: where things lie, not what they are.
PLACES = ("data.name", "data.path", "data.test", "data.fetch", "forget.rows")
Builder = Callable[..., nn.Module]


class _About(BaseModel):
    """What `run.json` must hold for the run to be opened."""

    schema_version: Literal[2]
    network: dict[Literal["name", "file", "sha256"], str | None]
    places: dict[Literal["path", "test"], str]
    preprocess: dict[Literal["function", "layout", "scale", "mean", "std"], Any]
    classes: list[str]
    suffix: Literal[".safetensors", ".pt", ".pth", ".bin"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, the table of its data, how rows become inputs, and the part that each row plays.

    `network` is the FILE.py:build or hf:FOLDER of a user's own network, and `untrained` builds one; None for ours.
    `weights` are those in the file that was read; None for a network that is not trained yet.
    """

    path: Path | None
    kind: str
    model: nn.Module
    weights: Weights | None
    table: Table
    preprocess: Preprocess
    parts: Parts
    config: Config
    record: DeletionRecord
    network: str | None
    untrained: Builder | None

    @cached_property
    def data(self) -> ImageData:
        """All rows as inputs in memory, for attacks that want them so."""
        return image_data(self.table, self.preprocess, test=self.parts.unseen)

    @property
    def known(self) -> Index:
        """Rows that the model has learned from and not forgotten since."""
        return self.parts.rows(RETAIN)

    @property
    def forgotten(self) -> Index:
        """Training rows that requests so far asked to forget."""
        return np.flatnonzero(np.isin(self.parts.part[: self.table.train], (FORGET, FORGOTTEN)))

    @property
    def dtype(self) -> torch.dtype:
        """What inputs are computed in."""
        return next(self.model.parameters()).dtype

    @property
    def stored(self) -> torch.dtype | None:
        """The type that the weights came in and go back to, where it has fewer bits than they are computed in."""
        kinds = set() if self.weights is None else {t.dtype for t in self.weights.state.values()}
        return next((k for k in kinds if k.is_floating_point and k.itemsize < self.dtype.itemsize), None)

    @property
    def fill(self) -> tuple[float, ...]:
        """The input of a black pixel in each channel, with which crops are padded."""
        mean, std = self.preprocess.mean, self.preprocess.std
        return tuple(-m / s for m, s in zip(mean, std, strict=True)) or (0.0,)

    @property
    def device(self) -> torch.device:
        """Where the configuration asks to compute."""
        return choose_device(self.config.device)

    def examples(self, rows: Index) -> Examples:
        """These rows as the model takes them, on its device."""
        return table_examples(self.table, rows, self.preprocess, device=self.device, dtype=self.dtype)

    def identity(self) -> dict[str, Any]:
        """What decides a result besides settings: a finished command is done again where any of it differs."""
        return {
            "model": model_digest(self.model),
            "rows": array_digest(self.parts.digests, self.parts.labels, self.parts.part),
            "preprocess": self.preprocess.describe(),
            "network_file": None if self.network is None else file_digest(self.network),
            "preprocess_file": None if self.preprocess.spec is None else file_digest(self.preprocess.spec),
            "threads": torch.get_num_threads(),
            "device": str(self.device),
        }

    def start_run(self, out: Path, *, kind: str, **found: object) -> RunDirectory:
        """The run at `out` with these settings, which the model and `found` decide besides."""
        config = as_plain(self.config) | {RESOLVED: to_json(self.identity() | found)}
        return start_run(out, kind=kind, config=config, places=PLACES)


def open_subject(path: Path, options: Options, *, beside: Subject | None = None, **flags: Any) -> Subject:
    """The model at `path`, a run directory or a weight file, with everything needed to go on from it.

    What `options` leave open a run remembers; a weight file takes it from the model `beside` it. `flags` are further
    settings, as `Options.settings` takes them.
    """
    if not path.exists():
        raise InputError(f"there is nothing at {path}; give the --out of a finished command, or a weight file")
    if path.is_file() and path.name == WEIGHTS and (path.parent / ABOUT).is_file():
        path = path.parent
    if path.is_dir() and not (path / "config.json").is_file():
        return _from_run(path, options, options.settings(**flags))
    if path.is_dir():
        # A folder of Hugging Face is network and weights in one.
        options = replace(options, model=options.model or f"hf:{path}")
        weights = Weights(load_builder(f"hf:{path}")().state_dict(), {}, ".safetensors")
    else:
        weights = read_weights(path)
    base = {} if beside is None else _carried(as_plain(beside.config))
    config = resolve(base=base, file=options.config, overrides=options.settings(**flags))
    network = _named_network(options)
    if network is None and beside is not None and config.model.name == "custom":
        network = beside.network
    if network is None and "model" not in config.model_fields_set:
        config = config.model_copy(update={"model": _model_of(weights)})
    if beside is None and weights.header.get("deletions"):
        raise InputError(f"{path} holds a model that has forgotten rows, and its file cannot say which; give its run")
    if beside is not None and config.data == beside.config.data:
        table, preprocess, parts = beside.table, beside.preprocess, beside.parts
    elif config.data.holdout is not None:
        raise InputError("a holdout is drawn before training, and this model knows its rows: give --test instead")
    elif network is not None and not (config.data.name or config.data.path or options.config):
        raise InputError(f"nothing says what data {path} learned from; say --data (digits too, if it was these)")
    else:
        table = open_table(config)
        preprocess, parts = _preprocess(config, table, weights.header), _start_parts(config, table)
    model, untrained = _network(config, table, preprocess, own=network, weights=weights, source=path)
    record = DeletionRecord()
    return Subject(path, "file", model, weights, table, preprocess, parts, config, record, network, untrained)


def open_subjects(paths: Mapping[str, Path], options: Options, **flags: Any) -> dict[str, Subject]:
    """Models by name, on the table of the first. A weight file takes what a run beside it remembers."""
    runs = {name: open_subject(path, options, **flags) for name, path in paths.items() if path.is_dir()}
    beside = next(iter(runs.values()), None)
    found = {n: runs.get(n) or open_subject(p, options, beside=beside, **flags) for n, p in paths.items()}
    return on_one_table(found)


def on_one_table(subjects: Mapping[str, Subject]) -> dict[str, Subject]:
    """The subjects with their parts on the table of the first, matched by content, so that a row number means the same
    row for all. Models of other data, or that read rows in another way, are refused.
    """
    name, first = next(iter(subjects.items()))
    for other, subject in subjects.items():
        if subject.preprocess.describe() != first.preprocess.describe():
            raise InputError(
                f"the {other} model reads rows as {subject.preprocess} and the {name} model as {first.preprocess}; "
                "compare models that read them alike"
            )
    return {
        n: s if s.table is first.table else replace(s, table=first.table, parts=s.parts.on(first.table))
        for n, s in subjects.items()
    }


def read_parts(file: Path, original: Subject) -> Parts:
    """The part of each row once the rows in `file` and their copies are forgotten, all of which the original knew."""
    rows = find(read_request(file), original.table)
    check_known(original, rows)
    return original.parts.request(original.table, rows)


def check_known(original: Subject, forget: Index) -> None:
    """Refuse rows to forget that the original never learned from."""
    unknown = np.setdiff1d(forget, np.concatenate([original.known, original.forgotten]))
    if len(unknown):
        raise DataError(
            f"the original model never learned from {len(unknown)} of the {len(forget)} forgotten rows (first: "
            f"{unknown[0]}); give the model from before the request, or leave them out"
        )


def check_reference(retrained: Subject, forget: Index, path: Path) -> None:
    """Refuse a reference that was not retrained, or that learned from examples to forget."""
    done, why = retrained.record.deletions, ""
    known = np.intersect1d(retrained.known, forget)
    if done and not str(done[-1].method.get("name")).startswith("retrain"):
        why = f"was made by {done[-1].method.get('name')}"
    elif retrained.kind != "file" and len(known):
        why = f"learned from {len(known)} of the {len(forget)} rows to forget (first: {known[0]})"
    if why:
        raise InputError(
            f"the retrained model {path} {why}, so it is no reference; give a run of `--method retrain` with the same "
            "rows to forget"
        )


def new_subject(config: Config, options: Options) -> Subject:
    """An untrained network with its data: what `warp train` starts from."""
    network, table, record = _named_network(options), open_table(config), DeletionRecord()
    preprocess, parts = _preprocess(config, table), _start_parts(config, table)
    model, untrained = _network(config, table, preprocess, own=network, weights=None, source=Path())
    return Subject(None, "new", model, None, table, preprocess, parts, config, record, network, untrained)


def load_run(path: str | Path, **options: Any) -> Subject:
    """A finished run of `warp check`, `train`, `unlearn` or `teleport`: its model, table, parts and record.

    `options` are those of the command line, such as data="moved/data.npz" or device="cpu".
    """
    kinds = {name: get_args(hint)[0] for name, hint in get_type_hints(Options).items()}
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in kinds:
            raise InputError(f"there is no option {name!r}; {nearest(name, kinds)}")
        if kinds[name] is Path and value is not None:
            value = as_path(value, name)
        elif name in ("mean", "std", "classes") and isinstance(value, list | tuple | int | float):
            value = ",".join(map(str, value if isinstance(value, list | tuple) else (value,)))
        elif name == "data" and isinstance(value, Path):
            value = str(value)
        try:
            given[name] = TypeAdapter(kinds[name] | None).validate_python(value, strict=True)
        except ValidationError as error:
            kind = type(value).__name__
            raise InputError(f"{name} is a {kind}; give what --{name} takes on the command line") from error
    return open_subject(as_path(path, "the run"), Options(**given))


def save_subject(
    run: RunDirectory, subject: Subject, model: nn.Module, *, parts: Parts, record: DeletionRecord | None = None
) -> None:
    """Write the model, the part of every row and `run.json` into a run, and the record of what was deleted."""
    config, weights, found = subject.config, subject.weights, subject.identity()
    header: dict[str, object] = {"model": config.model.name, "options": dict(config.model.options)}
    if weights is not None and "nested" in weights.header:
        header["nested"] = weights.header["nested"]
    if subject.preprocess.function is None:
        header["preprocess"] = found["preprocess"]
    if record is not None and record.deletions:
        header["deletions"] = len(record.deletions)
        run.write_json(RECORD, record.as_json())
    if weights is None:
        save_weights(run.path / WEIGHTS, model, header=header)
    else:
        save_as_given(run.path / WEIGHTS, model, weights, header=header)
    parts.save(run.path / ROWS)
    places = {"path": config.data.path, "test": config.data.test}
    about = {
        "schema_version": RUN_SCHEMA,
        "network": {"name": config.model.name, "file": subject.network, "sha256": found["network_file"]},
        "places": {k: os.path.relpath(place, run.path) for k, place in places.items() if place is not None},
        "preprocess": found["preprocess"],
        "classes": list(subject.table.classes),
        "suffix": ".safetensors" if weights is None else weights.suffix,
        "from": {"path": None if subject.path is None else str(subject.path), "model": found["model"]},
        "versions": versions(),
        "threads": found["threads"],
        "device": found["device"],
    }
    run.write_json(ABOUT, about)


def open_table(config: Config | PriorConfig, *, classes: list[str] | None = None) -> Table:
    """The rows of the user's data, in the order of the file; of these `classes`, of which one may be gone."""
    about = config.data
    kind = about.name or recognise(about.path)
    if about.classes is not None or kind in ("digits", "cifar10", "fashion_mnist"):
        classes = about.classes
    given = about.model_dump(include={"path", "test", "holdout", "ids", "size", "fetch"})
    return load_table(kind, **given, classes=classes, seed=config.seed)


def _start_parts(config: Config, table: Table) -> Parts:
    rows = table.learned
    count, generator = round(config.validation * len(rows)), Streams(config.seed).generator("validation")
    return Parts.start(table, validation=rows[draw_per_class(table.y[rows], count=count, generator=generator)])


def _from_run(path: Path, options: Options, overrides: list[str]) -> Subject:
    run = open_run(path)
    about, base = _about(run), _carried({k: v for k, v in run.config().items() if k in Config.model_fields})
    data: Any = base.get("data")
    for key, relative in about["places"].items() if isinstance(data, dict) else ():
        # Where the data were, or beside the run as they were beside it.
        if isinstance(data.get(key), str) and not Path(data[key]).exists() and (path / relative).exists():
            data[key] = os.path.normpath(path / relative)
    config = resolve(base=base, file=options.config, overrides=overrides)
    _check_fixed(config, resolve(base=base), path)
    network, spec = _named_network(options) or about["network"].get("file"), config.data.preprocess
    if spec is not None and options.preprocess is not None:
        trust(spec)
    # A folder of Hugging Face holds no code; a preprocessing is a file whatever it is called.
    code = [own for own in (None if str(network).startswith("hf:") else network, spec) if own is not None]
    if unknown := [own for own in code if not is_trusted(own)]:
        raise InputError(
            f"this run needs {unknown[0]}, and code is executed only where its user has named it as it is now: if it "
            "is yours, name it again (--model or --preprocess)"
        )
    table = open_table(config, classes=about["classes"])
    function = None if spec is None else load_function(spec, what="preprocessing")
    preprocess = Preprocess.from_plain(about["preprocess"], function=function)
    parts = Parts.load(path / ROWS).align(table)
    has_record = (path / RECORD).is_file()
    record = DeletionRecord.from_json(run.read_json(RECORD)) if has_record else DeletionRecord()
    weights = replace(read_weights(path / WEIGHTS), suffix=about["suffix"])
    model, untrained = _network(config, table, preprocess, own=network, weights=weights, source=path)
    # The user's network file may have changed since: then the model is checked like a weight file.
    same = network is None or about["network"].get("sha256") in (None, file_digest(network))
    kind = run.kind if same else "file"
    return Subject(path, kind, model, weights, table, preprocess, parts, config, record, network, untrained)


def _about(run: RunDirectory) -> dict[str, Any]:
    if not (run.path / ABOUT).is_file():
        raise InputError(
            f"{run.path} is a run of version 0.1 or of another command; run `warp check` on its model file, with --out"
        )
    about = run.read_json(ABOUT)
    try:
        _About.model_validate(about)
    except ValidationError as error:
        found = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
        raise DataError(f"{run.path / ABOUT} is damaged or of another version ({found}); make the run again") from error
    return about


def _network(
    config: Config, table: Table, preprocess: Preprocess, *, own: str | None, weights: Weights | None, source: Path
) -> tuple[nn.Module, Builder | None]:
    # Threads that a file of settings or a run asks for; those of the command line are set already.
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    streams, untrained = Streams(config.seed, "initial weights"), None
    if own is not None:
        untrained = partial(load_builder(own, untrained=weights is not None), **config.model.options)
        # The user's code draws from torch's global generator, which is put back as it was.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(streams.number("user"))
            model = untrained()
    elif config.model.name == "custom":
        raise InputError("this model is one of your own; name it with --model FILE.py:build or hf:FOLDER")
    else:
        shape = tuple(preprocess.inputs(table.x[np.array([0])]).shape[1:])
        options = {**suggest_options(config.model.name, shape, len(table.classes)), **config.model.options}
        model = build_model(config.model.name, generator=streams.generator("weights"), **options)
    if weights is None:
        return model, untrained
    kinds = {tensor.dtype for tensor in weights.state.values() if tensor.is_floating_point()}
    half = kinds & {torch.float16, torch.bfloat16}
    if config.dtype is None and half:
        raise InputError(
            f"{source} holds {str(half.pop()).removeprefix('torch.')} weights, in which small updates are rounded away "
            "and nothing is forgotten; say --dtype float32 to compute in that and write them as they were"
        )
    if config.dtype is not None or kinds == {torch.float64}:
        model = model.to(getattr(torch, config.dtype or "float64"))
    load_weights(model, weights, source=str(source), cast=config.dtype is not None)
    return model, untrained


def _carried(base: Mapping[str, Any]) -> dict[str, Any]:
    # A next command has a request, a method and a defence of its own.
    return {k: v for k, v in base.items() if k not in ("method", "forget", "defense", "accuracy")}


def _check_fixed(config: Config, started: Config, path: Path) -> None:
    places = {"data": {"name", "path", "test", "fetch", "ids"}}
    fixed = {"data", "model", "training", "validation"}
    now, before = (c.model_dump(include=fixed, exclude=places) for c in (config, started))
    if changed := [section for section in now if now[section] != before[section]]:
        raise InputError(f"{changed[0]} differs from that of the run {path}, and is fixed; leave it out")


def _named_network(options: Options) -> str | None:
    if not options.own_network or options.model is None:
        return None
    if ":" not in options.model:
        raise InputError(f"{options.model} names no function; write --model {options.model}:build, with its name")
    trust(options.model)  # the user has just named it
    return absolute(options.model)


def _model_of(weights: Weights) -> ModelConfig:
    name, options = weights.header.get("model"), weights.header.get("options")
    if not isinstance(name, str) or name not in MODELS or not isinstance(options, Mapping):
        ways = "|".join(("FILE.py:build", "hf:FOLDER", *MODELS))
        raise InputError(f"nothing says which network the weights are of; give --model {ways}")
    return ModelConfig(name=name, options=dict(options))


def _preprocess(config: Config, table: Table, header: Mapping[str, Any] | None = None) -> Preprocess:
    about = config.data
    if about.preprocess is not None:
        trust(about.preprocess)
        function = load_function(about.preprocess, what="preprocessing")
        return Preprocess(layout=table.layout, function=function, spec=about.preprocess)
    if about.scale is about.mean is about.std is None:
        if header is None:  # not trained yet
            return Preprocess.standard(table)
        if isinstance(header.get("preprocess"), Mapping):
            return Preprocess.from_plain(header["preprocess"])
    usual = 1.0 if table.x.dtype.kind == "f" else 16.0 if table.name == "digits" else 255.0
    mean, std = (() if v is None else tuple(np.atleast_1d(v).tolist()) for v in (about.mean, about.std))
    mean, std = mean or (0.0,) * len(std), std or (1.0,) * len(mean)
    return Preprocess(about.scale or usual, mean, std, table.layout)
