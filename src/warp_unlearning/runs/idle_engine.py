"""An engine that does nothing: for a look at what a store holds, on a machine that could not have made it."""

from __future__ import annotations

from collections.abc import Sequence

from .engine import Outcome
from .events import Event, Watch
from .jobs import Job, Work
from .store import Store


class IdleEngine:
    """Leaves every job whose result is not in the store."""

    def run(
        self, jobs: Sequence[Job], *, work: Work, store: Store, watch: Watch, until: float | None = None
    ) -> Outcome:
        """What is there, and what is left."""
        there = [job.key for job in jobs if store.has(job.key)]
        for key in there:
            watch(Event("found", key))
        known = set(there)
        return Outcome((), tuple(there), {}, (), tuple(job.key for job in jobs if job.key not in known))
