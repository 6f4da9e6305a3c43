"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .run_progress import Style

if TYPE_CHECKING:
    from ..workflows.source import Builder

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file of settings.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--override", "-o", metavar="KEY=VALUE", help="One setting over the file's, as in training.lr=0.1."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
UserModel = Annotated[
    str | None,
    typer.Option("--model", metavar="FILE.py:build", help="A network of your own: a function that returns it."),
]
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


def prepare(threads: int | None, model: str | None) -> Builder | None:
    """Set the CPU threads, and load the user's own network where one is named."""
    from ..models.own import load_builder
    from ..runs.cores import available_cores, use_threads

    use_threads(threads or available_cores())
    return load_builder(model) if model else None


def assign(overrides: list[str] | None, **flags: object) -> list[str]:
    """Overrides, with those flags that were given (not None) behind them, as KEY__SUB=VALUE.

    >>> assign(["seed=1"], data__path=Path("2024"), training__epochs=3, device=None, methods=["ngp", "null"])
    ['seed=1', 'data.path="2024"', 'training.epochs=3', 'methods=["ngp", "null"]']
    """
    given = [f"{key.replace('__', '.')}={_quoted(value)}" for key, value in flags.items() if value is not None]
    return [*(overrides or []), *given]


def _quoted(value: object) -> str:
    """Numbers as they are; names and paths in quotes, since a folder may be called 2024, null or #1."""
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value if isinstance(value, list) else str(value), ensure_ascii=False)
