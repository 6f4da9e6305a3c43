"""Progress on the error stream: a bar on a terminal, one line an epoch elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..training.update import Update


class Progress:
    """Called after each update; use it as a context, so that the terminal is left in order."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._title = title
        self._bar: Progress | None = None
        self._task = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[loss]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(title, total=None, loss="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, update: Update) -> None:
        """Show an update; losses are read at the end of an epoch only, so that a GPU is not waited for."""
        text = ""
        if update.ends_epoch:
            text = "  ".join(f"{name} {float(loss):.4f}" for name, loss in update.losses.items())
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=update.step, total=update.of)
            if text:
                self._bar.update(self._task, loss=text)
        elif update.ends_epoch:
            typer.echo(f"{self._title}: epoch {update.epoch + 1}, update {update.step}/{update.of}  {text}", err=True)
