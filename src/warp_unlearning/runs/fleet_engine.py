"""Jobs in one process that take turns, a step each: for work that is done elsewhere, such as on a GPU, while the
process only hands it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InputError
from .engine import Outcome
from .events import Watch
from .fleet import Fleet, Lane
from .job_schedule import Schedule
from .jobs import Job, Work, stepped
from .store import Store


@dataclass(frozen=True)
class FleetEngine:
    """So many jobs side by side, each in a lane that `make_lane` gives.

    The work must have a method `steps`, which is called as the work is and does the job as a generator. All jobs
    share this thread: one step of each in turn.

    A job that finds no room is put back, for the next lane that another job leaves; its own lane rests, and the idle
    ones with it (`RestingLanes`). One that is alone in this process and finds none is tried again after 15, 30 and
    60 seconds, in which nothing else is begun, and then fails: other processes may give memory back, but a device that
    is too small stays so. Jobs of the same kind are then tried again only once, after 60 seconds, until one ends well.
    """

    at_once: int
    make_lane: Callable[[], Lane]

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise InputError(f"{self.at_once} jobs at once; give 1 or more")

    def run(
        self, jobs: Sequence[Job], *, work: Work, store: Store, watch: Watch, until: float | None = None
    ) -> Outcome:
        """Put the result of every job in `store`."""
        steps = stepped(work)
        schedule = Schedule(jobs, store=store, watch=watch, retries=0, until=until)
        Fleet(self.at_once, self.make_lane, steps, store, watch).carry_out(schedule)
        return schedule.outcome()
