"""Steps of jobs without the warnings that users of a single unlearning get."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import TypeVar

from ..errors import WarpWarning

T = TypeVar("T")


def quietly(steps: Generator[object, None, T]) -> Generator[object, None, T]:
    """The same steps and what they return. What a method or a defence would warn of is in the results."""
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WarpWarning)
            try:
                seen = next(steps)
            except StopIteration as end:
                found: T = end.value
                return found
        yield seen
