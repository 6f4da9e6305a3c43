"""The longest of a length and its halves that does what it should, found by few trials.

Lengths of one network's moves are halved about as often from one move to the next, and every trial costs a pass over
examples, so a search begins near where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Tried = TypeVar("Tried")


def longest_that_does(
    tried: Callable[[int], Tried],
    does: Callable[[Tried], bool],
    *,
    halvings: int,
    before: int,
    hopeless: Callable[[Tried], bool] = lambda _: False,
) -> Tried | None:
    """What `tried` gives for a length halved so often that it does, at most `halvings` times; one `before` was halved
    that often. None where none does, or where the first is `hopeless`, so that no other could.

    The first trial is a length of twice the one before. From one that does, longer ones are tried until one does not;
    after one that does not, shorter ones and then the longer ones after all. Where all lengths below one that does do
    so too, what is found is the longest there is.
    """
    first = min(max(0, before - 1), halvings)
    found = tried(first)
    if hopeless(found):
        return None
    if not does(found):
        others = (*range(first + 1, halvings + 1), *reversed(range(first)))
        return next((trial for trial in map(tried, others) if does(trial)), None)
    for halved in reversed(range(first)):
        longer = tried(halved)
        if not does(longer):
            break
        found = longer
    return found
