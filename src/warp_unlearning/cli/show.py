"""What commands print: tables of 100 columns where their cells fit, progress, and the last lines or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..stats.intervals import Estimate
    from ..training.update import Update

WIDTH = 100


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output; the first column is text, the others are numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    # A number with its interval is never cut or wrapped.
    width = max(WIDTH, Console(width=1000).measure(table).maximum)
    Console(width=width).print(table, markup=False)


def print_json(data: Mapping[str, Any]) -> None:
    """Print plain data as it stands in a results file."""
    typer.echo(json.dumps(data, indent=2))


def finish(
    lines: Sequence[str], *, out: Path | None = None, exit_code: int = 0, results: Mapping[str, Any] | None = None
) -> None:
    """End a command: print its last lines and where its files are, or `results` as JSON instead; exit with its code."""
    if results is not None:
        print_json(results)
    else:
        typer.echo("\n".join([*lines, *([] if out is None else [f"written to {out}"])]))
    if exit_code:
        raise typer.Exit(exit_code)


def points(share: float | None) -> str:
    """A share as it is printed.

    >>> points(0.8934), points(1.0), points(None)
    ('.893', '1.000', '-')
    """
    return "-" if share is None else f"{share:.3f}".removeprefix("0")


def short(estimate: Estimate) -> str:
    """A share with its interval in few columns: .882 [.846, .912]."""
    return f"{points(estimate.value)} [{points(estimate.low)}, {points(estimate.high)}]"


class Progress:
    """Shows updates on the error stream: a bar on a terminal, one line an epoch elsewhere. Use it as a context."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            loss, left = TextColumn("{task.fields[loss]}"), TimeRemainingColumn()
            columns = (TextColumn("{task.description}"), BarColumn(), loss, left)
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(title, total=None, loss="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, update: Update) -> None:
        """Show an update; losses are read at the end of an epoch only, so that no update waits for a GPU."""
        text = ""
        if update.ends_epoch:
            text = "  ".join(f"{name} {float(loss):.4f}" for name, loss in update.losses.items())
        if self._bar is not None:
            shown: dict[str, Any] = {"loss": text} if text else {}
            self._bar.update(self._task, completed=update.step, total=update.total, **shown)
        elif update.ends_epoch:
            where = f"epoch {update.epoch + 1}, update {update.step}/{update.total}"
            typer.echo(f"{self._title}: {where}  {text}", err=True)
