"""The errors a user may meet. Each message says what is wrong, the value, and the way out.

Each class carries the exit code of the command line: 1 for a result that does not hold, 2 for bad usage or input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any


class WarpError(Exception):
    """Root of every error raised on purpose."""

    exit_code = 2


class InputError(WarpError):
    """An argument, option or configuration that cannot be used."""


class DataError(WarpError):
    """Examples, labels, indices or data files that are damaged, empty or do not fit together."""


class WeightsError(WarpError):
    """A weight file that is damaged, unsafe, or of another model."""


class DivergedError(WarpError):
    """A loss or weight stopped being finite. `state` holds the last finite weights; empty where none were kept."""

    exit_code = 1

    def __init__(self, message: str, *, state: Mapping[str, Any], update: int) -> None:
        super().__init__(message)
        self.state = state
        self.update = update

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments would be lost on the way back from a worker process.
        return partial(type(self), state=self.state, update=self.update), self.args


class CollapsedError(DivergedError):
    """Accuracy fell so far below the start that the model is of no use. `state` holds the weights of the last check
    before that.
    """


class ConformanceError(WarpError):
    """A method broke one of the rules of the conformance kit."""

    exit_code = 1


class WarpWarning(UserWarning):
    """Something that may not be what was meant, though it could be done."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A sentence naming what may have been meant, for the end of an error about an unknown name.

    >>> nearest("salum", ["ngp", "salun"])
    "did you mean 'salun'? Known: ngp, salun"
    """
    known = sorted(choices)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(known)}"
