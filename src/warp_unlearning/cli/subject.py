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
from pydantic import BaseModel, ValidationError
from torch import nn

from ..config import Config, PriorConfig, as_plain, resolve
from ..data.examples import Examples
from ..data.files import array_digest, as_path
from ..data.preprocess import ImageData, Preprocess, image_data, table_examples
from ..data.sampling import draw_per_class
from ..data.sources import load_table, recognise
from ..data.table import FORGET, FORGOTTEN, RETAIN, Index, Parts, Table, find, read_csv, read_request
from ..errors import DataError, InputError, nearest
from ..models.modes import choose_device
from ..models.networks import MODELS, build_model, suggest_options
from ..models.own import file_digest, is_trusted, load_builder, load_function, trust
from ..models.weights import Weights, load_weights, model_digest, read_weights, save_as_given, save_weights
from ..randomness import Streams
from ..runs.directory import RunDirectory, open_run
from ..unlearning.record import DeletionRecord, versions
from .options import Options, absolute

WEIGHTS, ROWS, ABOUT = "model.safetensors", "rows.npz", "run.json"
RUN_SCHEMA = 2
# What may differ between two runs of one configuration: where things lie, not what they are.
PLACES = ("data.name", "data.path", "data.test", "data.fetch", "forget.rows")
Builder = Callable[..., nn.Module]


class _Remembered(BaseModel):
    """What `run.json` must hold for the run to be opened."""

    network: dict[Literal["name", "file", "sha256"], str | None]
    places: dict[Literal["path", "test"], str]
    preprocess: dict[Literal["function", "layout", "scale", "mean", "std"], Any]
    classes: list[str]
    suffix: Literal[".safetensors", ".pt", ".pth", ".bin"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, the table of its data, how rows become inputs, and the part that each row plays.

    `network` is the FILE.py:build or hf:FOLDER of a user's own network, and `untrained` builds one; None for ours.
    `came_from` are the weights as they were read; None for a network that is not trained yet.
    """

    path: Path | None
    kind: str
    model: nn.Module
    came_from: Weights | None
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
        gone = np.concatenate([self.parts.rows(FORGET), self.parts.rows(FORGOTTEN)])
        return np.sort(gone[gone < self.table.train])

    @property
    def dtype(self) -> torch.dtype:
        """What inputs are computed in."""
        return next(self.model.parameters()).dtype

    @property
    def stored(self) -> torch.dtype | None:
        """The type that the weights came in and go back to, where it has fewer bits than they are computed in."""
        kinds = set() if self.came_from is None else {t.dtype for t in self.came_from.state.values()}
        less = [kind for kind in kinds if kind.is_floating_point and kind.itemsize < self.dtype.itemsize]
        return less[0] if less else None

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

    def test(self) -> Examples | None:
        """The rows that the model never saw; None without any."""
        rows = self.parts.unseen
        return self.examples(rows) if len(rows) else None

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


def open_subject(
    path: Path, options: Options, *, beside: Subject | None = None, flags: Mapping[str, object] | None = None
) -> Subject:
    """The model at `path`, a run directory or a weight file, with everything needed to go on from it.

    What `options` leave open a run remembers; a weight file takes it from the model `beside` it. `flags` are further
    settings, as `Options.settings` takes them.
    """
    if not path.exists():
        raise InputError(f"there is nothing at {path}; give the --out of a finished command, or a weight file")
    if path.is_file() and path.name == WEIGHTS and (path.parent / ABOUT).is_file():
        path = path.parent
    if path.is_dir() and (path / "config.json").is_file():
        # A folder of Hugging Face is network and weights in one.
        options = replace(options, model=options.model or f"hf:{path}")
        weights = Weights(load_builder(f"hf:{path}")().state_dict(), {}, ".safetensors")
    elif path.is_dir():
        return _from_run(path, options, options.settings(**(flags or {})))
    else:
        weights = read_weights(path)
    overrides = options.settings(**(flags or {}))
    config = resolve(
        base=_kept({} if beside is None else as_plain(beside.config)), file=options.config, overrides=overrides
    )
    network = _named(options)
    if network is None and beside is not None and config.model.name == "custom":
        network = beside.network
    if network is None and "model" not in config.model_fields_set:
        name, built = weights.header.get("model"), weights.header.get("options")
        if not isinstance(name, str) or name not in MODELS or not isinstance(built, Mapping):
            raise InputError(
                "nothing says which network the weights are of; give --model FILE.py:build, --model hf:FOLDER, or one "
                f"of ours: --model {'|'.join(MODELS)}"
            )
        model = config.model.model_copy(update={"name": name, "options": dict(built)})
        config = config.model_copy(update={"model": model})
    if beside is None and weights.header.get("deletions"):
        raise InputError(f"{path} holds a model that has forgotten rows, and its file cannot say which; give its run")
    if beside is not None and config.data == beside.config.data:
        table, preprocess, parts = beside.table, beside.preprocess, beside.parts
    else:
        if config.data.holdout is not None:
            raise InputError("a holdout is drawn before training, and this model knows its rows: give --test instead")
        table = open_table(config)
        preprocess, parts = _preprocess(config, table, weights.header), start_parts(config, table)
    return _subject(path, "file", weights, table, preprocess, parts, config, DeletionRecord(), network)


def new_subject(config: Config, options: Options) -> Subject:
    """An untrained network with its data: what `warp train` starts from."""
    network, table = _named(options), open_table(config)
    preprocess = Preprocess.standard(table) if _unsaid(config) else _preprocess(config, table, {})
    parts = start_parts(config, table)
    return _subject(None, "new", None, table, preprocess, parts, config, DeletionRecord(), network)


def save_subject(
    run: RunDirectory, subject: Subject, model: nn.Module, *, parts: Parts, record: DeletionRecord | None = None
) -> None:
    """Write the model, the part of every row and `run.json` into a run, and the record of what was deleted."""
    config, network = subject.config, subject.network
    header: dict[str, object] = {"model": config.model.name, "options": dict(config.model.options)}
    if subject.came_from is not None and "nested" in subject.came_from.header:
        header["nested"] = subject.came_from.header["nested"]
    if subject.preprocess.function is None:
        header["preprocess"] = subject.preprocess.describe()
    if record is not None and record.deletions:
        header["deletions"] = len(record.deletions)
        run.write_json("record.json", record.as_json())
    if subject.came_from is None:
        save_weights(run.path / WEIGHTS, model, header=header)
    else:
        save_as_given(run.path / WEIGHTS, model, subject.came_from, header=header)
    parts.save(run.path / ROWS)
    places = {"path": config.data.path, "test": config.data.test}
    about: dict[str, Any] = {
        "schema_version": RUN_SCHEMA,
        "network": {"name": config.model.name, "file": network},
        "places": {k: os.path.relpath(place, run.path) for k, place in places.items() if place is not None},
        "preprocess": subject.preprocess.describe(),
        "classes": list(subject.table.classes),
        "suffix": ".safetensors" if subject.came_from is None else subject.came_from.suffix,
        "from": {"path": None if subject.path is None else str(subject.path), "model": model_digest(subject.model)},
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": str(subject.device),
    }
    if network is not None:
        about["network"]["sha256"] = file_digest(network)
    run.write_json(ABOUT, about)


def load_run(path: str | Path, **options: Any) -> Subject:
    """A finished run of `warp check`, `train`, `unlearn` or `teleport`: its model, table, parts and record.

    `options` are those of the command line, such as data="moved/data.npz" or device="cpu".
    """
    return open_subject(as_path(path, "the run"), _told(options))


def _told(given: Mapping[str, Any]) -> Options:
    """The options of a call from Python, of the types that the command line gives."""
    known = {name: get_args(hint)[0] for name, hint in get_type_hints(Options).items()}
    told: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"there is no option {name!r}; {nearest(name, known)}")
        if known[name] is Path and value is not None:
            value = as_path(value, name)
        elif name in ("mean", "std", "classes") and isinstance(value, list | tuple | int | float):
            value = ",".join(map(str, value if isinstance(value, list | tuple) else (value,)))
        elif name == "data" and isinstance(value, Path):
            value = str(value)
        kind = {float: int | float, list[str]: list}.get(known[name], known[name])
        plain = isinstance(value, kind) and not isinstance(value, bool)
        if value is not None and not (plain and (kind is not list or all(isinstance(one, str) for one in value))):
            raise InputError(f"{name} is a {type(value).__name__}; give what --{name} takes on the command line")
        told[name] = value
    return Options(**told)


def open_table(config: Config | PriorConfig, *, classes: list[str] | None = None) -> Table:
    """The rows of the user's data, in the order of the file; of these `classes`, of which one may be gone."""
    about = config.data
    kind = about.name or recognise(about.path)
    if about.classes is not None or kind in ("digits", "cifar10", "fashion_mnist"):
        classes = about.classes
    return load_table(
        kind,
        about.path,
        test=about.test,
        holdout=about.holdout,
        ids=about.ids,
        size=about.size,
        classes=classes,
        fetch=about.fetch,
        seed=config.seed,
    )


def start_parts(config: Config, table: Table) -> Parts:
    """Every row known, but unseen ones and those that the configuration sets aside, drawn per class from the seed."""
    rows = table.learned
    count, generator = round(config.validation * len(rows)), Streams(config.seed).generator("validation")
    return Parts.start(table, validation=rows[draw_per_class(table.y[rows], count=count, generator=generator)])


@dataclass(frozen=True)
class Asked:
    """The rows of a request without their copies, and how they were asked for: one of the record's ways, the words to
    print, and who says that they were drawn at random (empty where nobody does).
    """

    rows: Index
    way: str
    words: str
    drawn: str = ""


def requested_rows(subject: Subject) -> Asked:
    """The rows that the configuration asks to forget."""
    ask, table, known = subject.config.forget, subject.table, subject.known
    given = [key for key in ("rows", "label", "fraction") if getattr(ask, key) is not None]
    if len(given) != 1:
        what = "nothing says what to forget" if not given else f"{' and '.join(given)} are both set"
        raise InputError(
            f"{what}; give one of --forget FILE (forget.rows), --forget-class NAME (forget.label) and "
            "--forget-fraction SHARE (forget.fraction)"
        )
    if ask.rows is not None:
        named = ask.column
        if named is None and ask.rows.suffix.lower() in (".csv", ".tsv") and ask.rows.is_file():
            # The column by which the data name their rows.
            named = next((head for head in read_csv(ask.rows) if head == subject.config.data.ids), None)
        values = read_request(ask.rows, named)
        rows, column = find(values, table, ask.by), values.dtype.names[0] if values.dtype.names else None
        texts = (values[column] if column else values).astype(str)
        by = ask.by or {"row": "row", "id": "id"}.get(column or "", "row" if np.char.isdecimal(texts).all() else "name")
        way = "mask" if values.dtype == bool else {"row": "numbers", "id": "ids", "name": "names"}[by]
        words = ask.rows.name + (f" (column {column})" if column else "")
        return Asked(rows, way, words, "your word" if ask.drawn else "")
    if ask.label is not None:
        name = str(ask.label)
        if name not in table.classes and name.isdecimal() and int(name) < len(table.classes):
            name = table.classes[int(name)]
        if name not in table.classes:
            raise InputError(f"no class is called {name!r}; the classes are {', '.join(table.classes[:20])}")
        rows = known[table.y[known] == table.classes.index(name)]
        if not len(rows):
            raise InputError(f"the model knows no row of class {name}; nothing is left to forget")
        return Asked(rows, "class", f"class {name}", "this software")
    assert ask.fraction is not None
    count = round(ask.fraction * len(known))
    if not 0 < count < len(known):
        raise InputError(f"a share of {ask.fraction} of {len(known)} known rows is {count} rows; choose another share")
    generator = Streams(subject.config.seed).generator("forget", len(subject.record.deletions))
    rows = known[draw_per_class(table.y[known], count=count, generator=generator)]
    return Asked(rows, "fraction", f"a random share of {ask.fraction:g}", "this software")


def on_one_table(subjects: Mapping[str, Subject]) -> dict[str, Subject]:
    """The subjects with their parts on the table of the first, matched by content, so that a row number means the same
    row for all. Models of other data, or that read rows in another way, are refused.
    """
    name, first = next(iter(subjects.items()))
    found = {}
    for other, subject in subjects.items():
        if subject.preprocess.describe() != first.preprocess.describe():
            raise InputError(
                f"the {other} model reads rows as {subject.preprocess} and the {name} model as {first.preprocess}; "
                "compare models that read them alike"
            )
        parts = first.parts if subject.table is first.table else subject.parts.on(first.table)
        found[other] = (
            subject
            if subject is first
            else replace(subject, table=first.table, parts=subject.parts if subject.table is first.table else parts)
        )
    return found


def check_reference(retrained: Subject, forget: Index, path: Path) -> None:
    """Refuse a reference that was not retrained, or that learned from examples to forget."""
    done, why = retrained.record.deletions, ""
    if done and not str(done[-1].method.get("name")).startswith("retrain"):
        why = f"was made by {done[-1].method.get('name')}"
    elif retrained.kind != "file" and len(known := np.intersect1d(retrained.known, forget)):
        why = f"learned from {len(known)} of the {len(forget)} rows to forget (first: {known[0]})"
    if why:
        raise InputError(
            f"the retrained model {path} {why}, so it is no reference; give a run of `--method retrain` with the same "
            "rows to forget"
        )


def _from_run(path: Path, options: Options, overrides: list[str]) -> Subject:
    run = open_run(path)
    if not (path / ABOUT).is_file():
        raise InputError(
            f"{path} is a run of version 0.1 or of another kind of command; run `warp check` on its model file, with "
            "--model, --data and --out, and go on from there"
        )
    about = run.read_json(ABOUT)
    if about.get("schema_version") != RUN_SCHEMA:
        raise DataError(
            f"{path / ABOUT} has schema version {about.get('schema_version')}; this program reads {RUN_SCHEMA}"
        )
    try:
        _Remembered.model_validate(about)
    except ValidationError as error:
        raise DataError(f"{path / ABOUT} is damaged ({error.errors()[0]['msg']}); make the run again") from error
    base = _kept({k: v for k, v in run.config().items() if k in Config.model_fields})
    data = dict(base["data"]) if isinstance(base.get("data"), Mapping) else {}
    for key, relative in about["places"].items():
        # Where the data were, or beside the run as they were beside it.
        if isinstance(data.get(key), str) and not Path(data[key]).exists() and (path / relative).exists():
            data[key] = os.path.normpath(path / relative)
    base = {**base, "data": data} if data else base
    config, started = resolve(base=base, file=options.config, overrides=overrides), resolve(base=base)
    _check_fixed(config, started, path)
    network = _named(options) or about["network"].get("file")
    spec, function = config.data.preprocess, None
    for own, named in ((network, options.own_network), (spec, options.preprocess is not None)):
        if own is not None and named:
            trust(own)
        harmless = own is network and own is not None and own.startswith("hf:")
        if own is not None and not harmless and not is_trusted(own):
            raise InputError(
                f"this run needs {own}, and code is executed only where its user has named it as it is now: if it is "
                "yours, name it again (--model or --preprocess)"
            )
    table = open_table(config, classes=about["classes"])
    if spec is not None:
        function = load_function(spec, what="preprocessing")
    preprocess = Preprocess.from_plain(about["preprocess"], function=function)
    has_record = (path / "record.json").is_file()
    record = DeletionRecord.from_json(run.read_json("record.json")) if has_record else DeletionRecord()
    weights = replace(read_weights(path / WEIGHTS), suffix=about["suffix"])
    parts = Parts.load(path / ROWS).align(table)
    # The user's network file may have changed since: then the model is checked like a weight file.
    same = network is None or about["network"].get("sha256") in (None, file_digest(network))
    return _subject(path, run.kind if same else "file", weights, table, preprocess, parts, config, record, network)


def _subject(
    path: Path | None,
    kind: str,
    weights: Weights | None,
    table: Table,
    preprocess: Preprocess,
    parts: Parts,
    config: Config,
    record: DeletionRecord,
    network: str | None,
) -> Subject:
    """The subject with its network, which has the weights, or those drawn from the seed."""
    # Threads that a file of settings or a run asks for; those of the command line are set already.
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    streams, untrained = Streams(config.seed, "initial weights"), None
    if network is not None:
        untrained = partial(load_builder(network, untrained=weights is not None), **config.model.options)
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
    if weights is not None:
        model = _with_weights(model, weights, config, source=str(path))
    return Subject(path, kind, model, weights, table, preprocess, parts, config, record, network, untrained)


def _kept(base: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration that goes on from another keeps of it."""
    return {k: v for k, v in base.items() if k not in ("method", "forget", "defense", "accuracy")}


def _check_fixed(config: Config, started: Config, path: Path) -> None:
    """Refuse other settings than those that the run's model was made with; places may change."""
    free = {"name": None, "path": None, "test": None, "fetch": False, "ids": None}
    now, then = (c.model_copy(update={"data": c.data.model_copy(update=free)}) for c in (config, started))
    for section in ("data", "model", "training", "validation"):
        if getattr(now, section) != getattr(then, section):
            raise InputError(
                f"{section} differs from that of the run {path}; it is fixed once a model is checked or trained: leave "
                "it out, or start again from the weight file"
            )


def _named(options: Options) -> str | None:
    """The user's own network where the command line names one, which makes its file a trusted one; absolute."""
    if not options.own_network or options.model is None:
        return None
    if ":" not in options.model:
        raise InputError(f"{options.model} names no function; write --model {options.model}:build, with its name")
    trust(options.model)
    return absolute(options.model)


def _half(weights: Weights) -> torch.dtype | None:
    kinds = {tensor.dtype for tensor in weights.state.values()}
    return next(iter(kinds & {torch.float16, torch.bfloat16}), None)


def _with_weights(model: nn.Module, weights: Weights, config: Config, *, source: str) -> nn.Module:
    """The model with the weights, in the precision of the file, or in that which the configuration asks for."""
    half = _half(weights)
    if config.dtype is not None:
        model = model.to(getattr(torch, config.dtype))
    elif half is not None:
        kind = str(half).removeprefix("torch.")
        raise InputError(
            f"{source} holds {kind} weights: small updates would be rounded away and nothing forgotten; say --dtype "
            f"float32 to compute in float32 and write {kind} again"
        )
    elif {t.dtype for t in weights.state.values() if t.is_floating_point()} == {torch.float64}:
        model = model.double()
    load_weights(model, weights, source=source, cast=config.dtype is not None)
    return model


def _unsaid(config: Config) -> bool:
    """Whether nothing says how rows become inputs."""
    about = config.data
    return (about.scale, about.mean, about.std, about.preprocess) == (None,) * 4


def _preprocess(config: Config, table: Table, header: Mapping[str, Any]) -> Preprocess:
    """As the configuration says, else as a weight file of ours says; else bytes over 255 and floating-point numbers
    as they are.
    """
    about = config.data
    if _unsaid(config) and isinstance(header.get("preprocess"), Mapping):
        return Preprocess.from_plain(header["preprocess"])
    if about.preprocess is not None:
        trust(about.preprocess)
        function = load_function(about.preprocess, what="preprocessing")
        return Preprocess(layout=table.layout, function=function, spec=about.preprocess)
    usual = 1.0 if table.x.dtype.kind == "f" else 16.0 if table.name == "digits" else 255.0
    mean, std = (() if v is None else (v,) if isinstance(v, float) else tuple(v) for v in (about.mean, about.std))
    mean, std = mean or (0.0,) * len(std), std or (1.0,) * len(mean)
    return Preprocess(about.scale or usual, mean, std, table.layout)
