"""The model a command starts from: a run directory of ours, or a weight file with a configuration that says what it
is.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import nn

from ..config.resolve import resolve
from ..config.schema import Config
from ..data.files import array_digest
from ..data.preprocess import ImageData, load_data
from ..data.sampling import draw_per_class
from ..data.split_folder import load_split
from ..data.splits import check_indices
from ..data.table import Index
from ..errors import DataError, InputError
from ..models.device import choose_device as choose_device
from ..models.registry import build_model, suggest_options
from ..models.weights import Weights, load_weights, read_weights
from ..randomness import Streams
from ..runs.directory import open_run
from ..unlearning.record import DeletionRecord

Builder = Callable[..., nn.Module]


@dataclass(frozen=True, eq=False)
class Source:
    """A model, the data it learned from, and which training examples it still knows.

    `known` and `validation` are sorted positions in the training part; the model never learned from `validation`.
    `known` is None where a weight file alone cannot tell.
    """

    model: nn.Module
    data: ImageData
    known: Index | None
    validation: Index
    config: Config
    record: DeletionRecord


def load_examples(config: Config) -> ImageData:
    """The data set of a configuration."""
    about = config.data
    return load_data(about.name, path=about.path, fetch=about.fetch, size=about.size)


def make_model(config: Config, data: ImageData, builder: Builder | None) -> nn.Module:
    """The untrained network of a configuration, its weights drawn from the seed; `builder` makes the user's own."""
    streams = Streams(config.seed, "initial weights")
    if builder is not None:
        # The user's code draws from torch's global generator, which is put back as it was.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(streams.number("user"))
            return builder(**config.model.options)
    if config.model.name == "custom":
        raise InputError("this model is one of your own; name its file and function with --model FILE.py:build")
    options = {**suggest_options(config.model.name, data.shape, len(data.classes)), **config.model.options}
    return build_model(config.model.name, generator=streams.generator("weights"), **options)


def validation_split(config: Config, data: ImageData) -> tuple[Index, Index]:
    """Positions to train on and positions to hold for validation, drawn per class from the seed."""
    y = data.train.y.cpu().numpy()
    held = draw_per_class(
        y, count=round(config.validation * len(y)), generator=Streams(config.seed).generator("validation")
    )
    return np.setdiff1d(np.arange(len(y), dtype=np.int64), held), held


def header(config: Config, data: ImageData, known: Index) -> dict[str, object]:
    """What a weight file says of itself, and of the examples it knows."""
    return {
        "seed": config.seed,
        "validation": config.validation,
        "known_digest": array_digest(known),
        "model": config.model.name,
        "options": dict(config.model.options),
        "data": data.name,
        "data_digest": data.digest,
        "classes": len(data.classes),
    }


def load_source(
    path: Path, *, config_file: Path | None = None, overrides: Sequence[str] = (), builder: Builder | None = None
) -> Source:
    """The model at `path`, a run directory or a weight file, with everything needed to go on from it."""
    if not path.exists():
        raise InputError(
            f"there is nothing at {path}; give the --out of a finished `warp train` or `warp unlearn`, or a weight file"
        )
    if path.is_dir():
        return _from_run(path, config_file, overrides, builder)
    config = resolve(file=config_file, overrides=overrides)
    data = load_examples(config)
    model = _with_weights(path, config, data, builder)
    known, held = _split_of_file(path, config, data)
    return Source(model, data, known, held, config, DeletionRecord())


def _split_of_file(path: Path, config: Config, data: ImageData) -> tuple[Index | None, Index]:
    """What a weight file was trained on: as it says itself, or for a file of others the whole training part, less a
    validation fraction where one is given. None where the file is of a model that has forgotten something.
    """
    about = read_weights(path).header
    if "known_digest" not in about:
        drawn = config if "validation" in config.model_fields_set else config.model_copy(update={"validation": 0.0})
        return validation_split(drawn, data)
    drawn = config.model_copy(update={"seed": about.get("seed"), "validation": about.get("validation")})
    known, held = validation_split(drawn, data)
    return known if array_digest(known) == about["known_digest"] else None, held


def _from_run(path: Path, config_file: Path | None, overrides: Sequence[str], builder: Builder | None) -> Source:
    run = open_run(path)
    base = {k: v for k, v in run.config().items() if k in Config.model_fields}
    started = resolve(base=base)
    config = resolve(base={**base, "method": {}, "forget": {}, "defense": {}}, file=config_file, overrides=overrides)
    _check_fixed(config, started, path)
    data = load_examples(config)
    model = _with_weights(path / "model.safetensors", config, data, builder)
    known: Index | None
    if run.kind == "train":
        known, held = (_indices(path / f"{name}.npy", len(data.train)) for name in ("train", "validation"))
        return Source(model, data, known, held, config, DeletionRecord())
    if run.kind == "teleport":
        # A moved model is another than the one a deletion record ends with.
        known, held = _split_of_file(path / "model.safetensors", config, data)
        return Source(model, data, known, held, config, DeletionRecord())
    split = load_split(path / "split", train_count=len(data.train), test_count=len(data.test))
    record = DeletionRecord.from_json(run.read_json("record.json"))
    return Source(model, data, split.retain, split.validation, config, record)


def _check_fixed(config: Config, started: Config, path: Path) -> None:
    """Raise where `config` differs from the run's in what the training fixed. Data may have moved: their digest
    decides.
    """
    now, then = (
        c.model_copy(update={"data": c.data.model_copy(update={"path": None, "fetch": False})})
        for c in (config, started)
    )
    for section in ("data", "model", "training", "validation"):
        if getattr(now, section) != getattr(then, section):
            raise InputError(
                f"{section} differs from that of the run {path}; it is fixed once a model is trained: leave it out"
            )


def _with_weights(path: Path, config: Config, data: ImageData, builder: Builder | None) -> nn.Module:
    weights = read_weights(path)
    _check_data(weights.header, data, path)
    model = make_model(_described(config, weights), data, builder)
    load_weights(model, weights, source=str(path))
    return model


def _described(config: Config, weights: Weights) -> Config:
    """The configuration, with the network that the weight file names where the configuration leaves it open."""
    name, options = weights.header.get("model"), weights.header.get("options")
    if not isinstance(name, str) or not isinstance(options, Mapping) or config.model.options:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"name": name, "options": dict(options)})})


def _check_data(about: Mapping[str, Any], data: ImageData, path: Path) -> None:
    digest = about.get("data_digest")
    if digest is not None and digest != data.digest:
        raise DataError(
            f"{path} was trained on other data ({about.get('data')}, digest {str(digest)[:12]}) than is loaded now "
            f"({data.name}, digest {data.digest[:12]}); give the data it was trained on"
        )


def _indices(path: Path, count: int) -> Index:
    return read_indices(path, count=count, what=path.stem, may_be_empty=path.stem == "validation")


def read_indices(path: Path, *, count: int, what: str, may_be_empty: bool = False) -> Index:
    """Positions from an .npy file, checked and sorted."""
    try:
        array = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, TokenError, BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"the {what} indices {path} cannot be read ({reason}); give an .npy file of positions"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"the {what} indices {path} hold several arrays; give an .npy file of one")
    if may_be_empty and array.size == 0:
        return np.empty(0, dtype=np.int64)
    return check_indices(array, count=count, what=what)
