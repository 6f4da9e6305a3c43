"""The errors a user may meet. Each message says what is wrong, the value, and the way out.

Each class carries the exit code of the command line: 1 for a result that does not hold, 2 for bad usage or input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

LONGEST = 400


class WarpError(Exception):
    """Root of every error raised on purpose. Its message is one line of at most 400 characters."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message))


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


def one_line(message: object, most: int = LONGEST) -> str:
    """The message without line breaks and memory addresses, its middle left out where it is longer than `most`.

    >>> one_line("a wrong\\n  value, 0123456789", most=20)
    'a wrong va ... 56789'
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"\s*[\r\n]\s*", " ", str(message)))
    return text if len(text) <= most else f"{text[: most - most // 3 - 4]} ... {text[len(text) - most // 3 + 1 :]}"


def reason(error: BaseException) -> str:
    """What an error of somebody else's code says, shortly: "ValueError: no such thing"."""
    return one_line(f"{type(error).__name__}: {error}", most=160).removesuffix(": ")


def nearest(name: str, choices: Iterable[str]) -> str:
    """A sentence naming what may have been meant, for the end of an error about an unknown name.

    >>> nearest("salum", ["ngp", "salun"])
    "did you mean 'salun'? Known: ngp, salun"
    """
    known = sorted(choices)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(known)}"
