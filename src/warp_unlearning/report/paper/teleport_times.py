"""How long each teleport of timed unlearnings took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..fields import Field
from .markdown import table

# Seconds of every teleport, run by run.
Runs = tuple[tuple[float, ...], ...]


def read_runs(row: Field) -> Runs:
    """Those of a row of results; none where it has none, or does not say."""
    about = row["teleports"].maybe(Field.mapping) if "teleports" in row else None
    return tuple(run.numbers() for run in row["teleports"]["each"]) if about is not None and "each" in about else ()


def teleport_table(arms: Sequence[tuple[str, Runs]]) -> str:
    """Milliseconds of arms by name. The first of a run decomposes, also where later ones are tracked, and captures what
    they repeat. Empty where no run has a second.

    >>> print(teleport_table([("BT", ()), ("BT + FastWARP", ((0.4, 0.05, 0.06), (0.5, 0.04)))]))
    | teleports, ms | the first of a run | later ones: median | all of them | how many |
    |---|---|---|---|---|
    | BT + FastWARP | 400.0 to 500.0 | 50.0 | 40.0 to 60.0 | 3 |
    """
    rows = [[name, *_numbers(runs)] for name, runs in arms if any(len(run) > 1 for run in runs)]
    heads = ["teleports, ms", "the first of a run", "later ones: median", "all of them", "how many"]
    return table(heads, rows) if rows else ""


def _numbers(runs: Runs) -> list[str]:
    first = [1000 * run[0] for run in runs if run]
    later = [1000 * seconds for run in runs for seconds in run[1:]]
    return [_ends(first), f"{median(later):.1f}", _ends(later), f"{len(later)}"]


def _ends(found: Sequence[float]) -> str:
    return f"{min(found):.1f} to {max(found):.1f}"
