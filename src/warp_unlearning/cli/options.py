"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from ..errors import InputError


def _shared(text: str, *names: str, metavar: str | None = None, least: int | None = None) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, min=least, rich_help_panel=_SUBJECT)


_SUBJECT = "The model and its data"
_SETTING = "One setting over the file's, as in training.lr=0.1."
Overrides = Annotated[list[str] | None, _shared(_SETTING, "--override", "-o", metavar="KEY=VALUE")]
ConfigFile = Annotated[Path | None, _shared("A YAML file; `warp config` lists all settings.", "--config", "-c")]
Device = Annotated[str | None, _shared("auto, cpu, cuda, cuda:1, ...")]
Threads = Annotated[int | None, _shared("CPU threads; all available cores by default.", "--threads", least=1)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_BUILD = "A network of your own: a function that returns it."
UserModel = Annotated[str | None, typer.Option("--model", metavar="FILE.py:build", help=_BUILD)]
SettingsFile = Annotated[Path | None, typer.Argument(help="A YAML file of settings; all have defaults.")]
RunFolder = Annotated[Path, typer.Option("--out", help="Folder for the run; a stopped run there is taken up again.")]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that share the GPU, each with lanes of its own; good where MPS runs."),
]
Plan = Annotated[bool, typer.Option("--plan", help="Only say what would be done.")]
_STYLES = "auto, bars, lines, json (one object a line) or none."
ProgressStyle = Annotated[Literal["auto", "bars", "lines", "json", "none"], typer.Option(help=_STYLES)]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A run of check, train or unlearn, or a weight file.")]
_REQUEST = "Rows to forget: .csv, .txt or .npy of row numbers, ids, names or a mask."
ForgetFile = Annotated[Path | None, typer.Option("--forget", metavar="FILE", help=_REQUEST)]
ForgetClass = Annotated[str | None, typer.Option(help="Every training row of this class, by name or number.")]
Column = Annotated[str | None, typer.Option(help="The column of a csv file that names the rows.")]
By = Annotated[str | None, typer.Option(metavar="row|id", help="Whether numbers are row numbers or ids.")]
Drawn = Annotated[bool, typer.Option("--drawn", help="Rows drawn at random within classes: your word, and recorded.")]
AsGiven = Annotated[bool, typer.Option("--as-given", help="Read rows as said, also where another reading fits better.")]
Stated = Annotated[float | None, typer.Option(help="The test accuracy that the model is known to have.")]
_SEED = "For experiments only: whoever knows it can undo the defence."
DefenseSeed = Annotated[int | None, typer.Option(min=0, help=_SEED)]

_NETWORK = "The network: ours by name, or your own."
_READ = "Your own function from raw rows to inputs."
_DATA = "An .npz, a .npy pair, a .csv or a folder of images."
# Options that bear the name of a key of `data`, or of a key of its own, and set it as it is given.
_OF_DATA = ("test", "holdout", "ids", "scale")
_OF_ALL = ("dtype", "seed", "device", "threads")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command that reads data takes about the model and its data. A run remembers all of it."""

    model: Annotated[str | None, _shared(_NETWORK, metavar="NAME|FILE.py:build|hf:FOLDER")] = None
    data: Annotated[str | None, _shared(_DATA, metavar="PATH|digits")] = None
    kind: Annotated[str | None, _shared("npz, npy, csv, folder, cifar10 or fashion_mnist, if in doubt.")] = None
    test: Annotated[Path | None, _shared("Test rows: the same kind of data at another path.")] = None
    holdout: Annotated[float | None, _shared("Share of unseen rows, drawn per class from the seed.")] = None
    ids: Annotated[str | None, _shared("The array or csv column that names the rows.")] = None
    classes: Annotated[str | None, _shared("Names of the classes in order, with commas between.")] = None
    scale: Annotated[float | None, _shared("What raw values are divided by, such as 255.")] = None
    mean: Annotated[str | None, _shared("Subtracted from scaled values: one number, or one a channel.")] = None
    std: Annotated[str | None, _shared("What the rest is divided by: one number, or one a channel.")] = None
    preprocess: Annotated[str | None, _shared(_READ, metavar="FILE.py:fn")] = None
    dtype: Annotated[str | None, _shared("float32 or float64 to compute in; half precision needs it.")] = None
    seed: Annotated[int | None, _shared("Decides every random draw but the defence's.")] = None
    device: Device = None
    threads: Threads = None
    config: ConfigFile = None
    override: Overrides = None

    @property
    def own_network(self) -> bool:
        """Whether `model` names a file or folder of the user's."""
        return self.model is not None and (":" in self.model or self.model.endswith(".py"))

    def settings(self, **flags: object) -> list[str]:
        """The overrides of a configuration that the options stand for, `flags` (see `assign`) after them."""
        return assign(
            self.override,
            model__name="custom" if self.own_network else self.model,
            data__name=self.data if self.data == "digits" else self.kind,
            data__path=None if self.data == "digits" else self.data,
            data__classes=None if self.classes is None else [name.strip() for name in self.classes.split(",")],
            data__mean=_numbers(self.mean),
            data__std=_numbers(self.std),
            data__preprocess=absolute(self.preprocess),
            **{f"data__{name}": getattr(self, name) for name in _OF_DATA},
            **{name: getattr(self, name) for name in _OF_ALL},
            **flags,
        )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Options` as its argument `options`, and set the CPU threads before it runs."""
    hints, parameters = get_type_hints(Options, include_extras=True), signature(command, eval_str=True).parameters
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters.values() if p.name != "options"]
    shared = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]) for f in fields(Options)
    ]

    def run(**given: Any) -> None:
        options = Options(**{name: given.pop(name) for name in hints})
        prepare(options.threads)
        command(**given, options=options)

    update_wrapper(run, command)
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return run


def prepare(threads: int | None) -> None:
    """Set the CPU threads."""
    from ..runs.local import available_cores, use_threads

    use_threads(threads or available_cores())


def request_flags(rows: Path | None, label: str | None, column: str | None, by: str | None) -> dict[str, Any]:
    """The settings that --forget, --forget-class, --column and --by stand for."""
    return {"forget__rows": rows, "forget__label": label, "forget__column": column, "forget__by": by}


def assign(overrides: list[str] | None, **flags: object) -> list[str]:
    """Overrides, with those flags that were given (not None) behind them, as KEY__SUB=VALUE.

    >>> assign(["seed=1"], data__path=Path("2024"), training__epochs=3, device=None, methods=["ngp", "null"])
    ['seed=1', 'data.path="2024"', 'training.epochs=3', 'methods=["ngp", "null"]']
    """
    given = [f"{key.replace('__', '.')}={_quoted(value)}" for key, value in flags.items() if value is not None]
    return [*(overrides or []), *given]


def _quoted(value: object) -> str:
    # Names and paths in quotes, since a folder may be called 2024, null or #1.
    plain = isinstance(value, bool | int | float | list)
    return json.dumps(value if plain else str(value), ensure_ascii=False)


def absolute(spec: str | None) -> str | None:
    """FILE.py:NAME or hf:FOLDER with an absolute path, which is found from every folder."""
    if spec is None or ":" not in spec:
        return spec
    kind, _, folder = spec.partition(":")
    file, _, name = spec.rpartition(":")
    return f"hf:{Path(folder).resolve()}" if kind == "hf" else f"{Path(file).resolve()}:{name}"


def _numbers(text: str | None) -> list[float] | None:
    """The numbers in a text with commas between them.

    >>> _numbers("0.5, 0.25")
    [0.5, 0.25]
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{text!r} is no list of numbers; write them with commas, as 0.485,0.456,0.406") from error
