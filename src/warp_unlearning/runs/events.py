"""What happens to the jobs of a run, told as it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from typing import Any, Literal

from .keys import Key

What = Literal["started", "finished", "found", "retried", "redone", "failed", "blocked"]


@dataclass(frozen=True)
class Event:
    """One thing that happened to one job.

    started: work on it began; finished: its result is in the store, after `seconds` of work; found: its result was in
    the store already, or another process put it there; retried: its process died, or it found no room, and it waits to
    be done again; redone: its result was corrupt or gone when another job needed it, and it waits to be done again;
    failed: for the reason given, with the traceback where there is one; blocked: it needs a job that failed. `at` is in
    seconds since 1970.
    """

    what: What
    key: Key
    at: float = field(default_factory=time)
    seconds: float | None = None
    reason: str = ""
    traceback: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data, without what is empty."""
        rest = {"seconds": self.seconds, "reason": self.reason, "traceback": self.traceback}
        told = {name: value for name, value in rest.items() if value not in (None, "")}
        return {"what": self.what, "kind": self.key.kind, "key": self.key.digest, "at": self.at} | told


Watch = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Watch nothing."""


def told_to(*watches: Callable[[Event], object]) -> Watch:
    """Tell every event to each of these, in their order."""

    def tell(event: Event) -> None:
        for watch in watches:
            watch(event)

    return tell
