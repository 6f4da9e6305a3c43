"""Progress of a run of jobs on the error stream: bars with the time left on a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from ..runs.events import Event
    from ..runs.tally import Stage, Tally

Style = Literal["auto", "bars", "lines", "json", "none"]
# A line at every so many hundredths of a stage.
_SHARE = 10


def in_words(style: Style) -> bool:
    """Whether more is said than events, as it suits a reader."""
    return style not in ("none", "json")


def planned_text(tally: Tally, there: int) -> str:
    """What is to be done, by stages, and how much of it is there already."""
    stages = ", ".join(f"{stage.jobs} {stage.name}" for stage in tally.stages.values())
    return f"planned: {stages}; {there} are there already"


class RunProgress:
    """Shows every event of a run; use it as a context, so that the terminal is left in order."""

    def __init__(self, tally: Tally, style: Style = "auto") -> None:
        self._tally = tally
        self._style = ("bars" if sys.stderr.isatty() else "lines") if style == "auto" else style
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._shown: dict[str, int] = {}

    def __enter__(self) -> RunProgress:
        if self._style == "bars":
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            for stage in self._tally.stages.values():
                self._tasks[stage.name] = self._bars.add_task(stage.name, total=stage.jobs, left="")
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show what happened to a job."""
        stage = self._tally.note(event)
        if self._style == "json":
            typer.echo(json.dumps(event.as_json()), err=True)
        elif self._style != "none":
            self._show(event, stage)

    def _show(self, event: Event, stage: Stage) -> None:
        left = _duration(self._tally.seconds_left(stage))
        if self._bars is not None:
            self._bars.update(self._tasks[stage.name], completed=stage.done + stage.failed, left=left)
        if event.what in ("failed", "retried", "redone"):
            self.say(f"{event.what}: {event.key}: {event.reason}")
        ended = stage.done + stage.failed
        step = max(1, stage.jobs // _SHARE)
        if (
            self._bars is None
            and ended
            and (ended % step == 0 or ended == stage.jobs)
            and self._shown.get(stage.name) != ended
        ):
            self._shown[stage.name] = ended
            self.say(f"{stage.name}: {ended} of {stage.jobs}{f', {stage.failed} failed' if stage.failed else ''}{left}")

    def say(self, text: str) -> None:
        """A line of text above the bars, or among the lines."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            typer.echo(text, err=True)


def _duration(seconds: float | None) -> str:
    """Text for the time left; nothing where it is unknown or none is left.

    >>> _duration(75.0), _duration(None)
    (', 1 min 15 s left', '')
    """
    if not seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f", {minutes} min {rest} s left" if minutes else f", {rest} s left"
