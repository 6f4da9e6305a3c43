"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..errors import InputError
from .run_progress import Style

_SUBJECT = "The model and its data"

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file of settings.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--override", "-o", metavar="KEY=VALUE", help="One setting over the file's, as in training.lr=0.1."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_BUILD = "A network of your own: a function that returns it."
UserModel = Annotated[str | None, typer.Option("--model", metavar="FILE.py:build", help=_BUILD)]
SettingsFile = Annotated[Path | None, typer.Argument(help="A YAML file of settings; all have defaults.")]
RunFolder = Annotated[Path, typer.Option("--out", help="Folder for the run; a stopped run there is taken up again.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that share the GPU, each with lanes of its own; good where MPS runs."),
]
Plan = Annotated[bool, typer.Option("--plan", help="Only say what would be done.")]
ProgressStyle = Annotated[Style, typer.Option(help="auto, bars, lines, json (one object a line) or none.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; all available cores by default.")]
_REQUEST = "Rows to forget: .csv, .txt or .npy of row numbers, ids, names or a mask."
ForgetFile = Annotated[Path | None, typer.Option("--forget", metavar="FILE", help=_REQUEST)]
ForgetClass = Annotated[str | None, typer.Option(help="Every training row of this class, by name or number.")]
Column = Annotated[str | None, typer.Option(help="The column of a csv file that names the rows.")]
By = Annotated[str | None, typer.Option(metavar="row|id", help="Whether numbers are row numbers or ids.")]
AsGiven = Annotated[bool, typer.Option("--as-given", help="Read rows as said, also where another reading fits better.")]
Stated = Annotated[float | None, typer.Option(help="The test accuracy that the model is known to have.")]
Drawn = Annotated[bool, typer.Option("--drawn", help="Rows drawn at random within classes: your word, and recorded.")]


def _shared(text: str, *names: str, metavar: str | None = None, least: int | None = None) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, min=least, rich_help_panel=_SUBJECT, show_default=False)


_NETWORK = _shared("The network: ours by name, or your own.", metavar="NAME|FILE.py:build|hf:FOLDER")
_DATA = _shared("An .npz, a .npy pair, a .csv or a folder of images.", metavar="PATH|digits")
_FUNCTION = _shared("Your own function from raw rows to inputs.", metavar="FILE.py:fn")
_SETTING = _shared("One setting, as in training.lr=0.1.", "--override", "-o", metavar="KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command that reads data may be told of the model and its data. A run remembers all of it."""

    model: Annotated[str | None, _NETWORK] = None
    data: Annotated[str | None, _DATA] = None
    kind: Annotated[str | None, _shared("npz, npy, csv, folder, cifar10 or fashion_mnist, if in doubt.")] = None
    test: Annotated[Path | None, _shared("Test rows: the same kind of data at another path.")] = None
    holdout: Annotated[float | None, _shared("Share of unseen rows, drawn per class from the seed.")] = None
    ids: Annotated[str | None, _shared("The array or csv column that names the rows.")] = None
    classes: Annotated[str | None, _shared("Names of the classes in order, with commas between.")] = None
    scale: Annotated[float | None, _shared("What raw values are divided by, such as 255.")] = None
    mean: Annotated[str | None, _shared("Subtracted from scaled values: one number, or one a channel.")] = None
    std: Annotated[str | None, _shared("What the rest is divided by: one number, or one a channel.")] = None
    preprocess: Annotated[str | None, _FUNCTION] = None
    dtype: Annotated[str | None, _shared("float32 or float64 to compute in; half precision needs it.")] = None
    seed: Annotated[int | None, _shared("Decides every random draw but the defence's.")] = None
    device: Annotated[str | None, _shared("auto, cpu, cuda, cuda:1, ...")] = None
    threads: Annotated[int | None, _shared("CPU threads; all available cores by default.", least=1)] = None
    config: Annotated[Path | None, _shared("A YAML file; `warp config` lists all settings.", "--config", "-c")] = None
    override: Annotated[list[str] | None, _SETTING] = None

    @property
    def own_network(self) -> bool:
        """Whether `model` names a file or folder of the user's."""
        return self.model is not None and (":" in self.model or self.model.endswith(".py"))

    def settings(self, **flags: object) -> list[str]:
        """The overrides of a configuration that the options stand for, `flags` (see `assign`) after them."""
        kind, path = (self.data, None) if self.data == "digits" else (self.kind, self.data)
        return assign(
            self.override,
            model__name="custom" if self.own_network else self.model,
            data__name=kind,
            data__path=path,
            data__test=self.test,
            data__holdout=self.holdout,
            data__ids=self.ids,
            data__classes=None if self.classes is None else [name.strip() for name in self.classes.split(",")],
            data__scale=self.scale,
            data__mean=_numbers(self.mean),
            data__std=_numbers(self.std),
            data__preprocess=absolute(self.preprocess),
            dtype=self.dtype,
            seed=self.seed,
            device=self.device,
            threads=self.threads,
            **flags,
        )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Options`, which it receives as its argument `options`."""
    hints = get_type_hints(Options, include_extras=True)
    own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != "options"]
    shared = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]) for f in fields(Options)
    ]

    def run(**given: Any) -> None:
        command(**{p.name: given[p.name] for p in own}, options=Options(**{name: given[name] for name in hints}))

    update_wrapper(run, command)
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = Signature([*(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own), *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return run


def request_flags(rows: Path | None, label: str | None, column: str | None, by: str | None) -> dict[str, Any]:
    """The settings that --forget, --forget-class, --column and --by stand for."""
    return {"forget__rows": rows, "forget__label": label, "forget__column": column, "forget__by": by}


def prepare(threads: int | None) -> None:
    """Set the CPU threads."""
    from ..runs.cores import available_cores, use_threads

    if threads is not None and threads < 1:
        raise InputError(f"--threads is {threads}; give a whole number of at least 1")
    use_threads(threads or available_cores())


def assign(overrides: list[str] | None, **flags: object) -> list[str]:
    """Overrides, with those flags that were given (not None) behind them, as KEY__SUB=VALUE.

    >>> assign(["seed=1"], data__path=Path("2024"), training__epochs=3, device=None, methods=["ngp", "null"])
    ['seed=1', 'data.path="2024"', 'training.epochs=3', 'methods=["ngp", "null"]']
    """
    given = [f"{key.replace('__', '.')}={_quoted(value)}" for key, value in flags.items() if value is not None]
    return [*(overrides or []), *given]


def _quoted(value: object) -> str:
    """Numbers as they are; names and paths in quotes, since a folder may be called 2024, null or #1."""
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    return json.dumps(value if isinstance(value, list) else str(value), ensure_ascii=False)


def absolute(spec: str | None) -> str | None:
    """FILE.py:NAME or hf:FOLDER with an absolute path, by which it is found from every folder."""
    if spec is None or (":" not in spec and not spec.endswith(".py")):
        return spec
    kind, separator, folder = spec.partition(":")
    if kind == "hf":
        return f"hf:{Path(folder).resolve()}"
    file, separator, name = spec.rpartition(":")
    return f"{Path(file).resolve()}{separator}{name}" if separator else spec


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
