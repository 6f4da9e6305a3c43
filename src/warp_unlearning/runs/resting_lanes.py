"""Lanes that rest because a job found no room on their device, and when each is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

FIRST_REST = 15.0
LONGEST_REST = 240.0
APART = 2.0

AnyLane = TypeVar("AnyLane")


class RestingLanes(Generic[AnyLane]):
    """Who else takes memory of a device, and for how long, is not known here: so lanes rest, and are tried again.

    Resting lanes come back once 15 seconds have passed since a job was last turned away and a job has ended well since
    then; one comes at a time, two seconds apart. Until its first job has ended well a lane that came back is on trial.
    Where a job is turned away meanwhile, in whichever lane, since the one too many need not be the one that finds no
    room, lanes came back too soon: the rest is twice as long, up to four minutes. It is 15 seconds again when a trial
    ends well. Times `now` are in seconds, by any clock that does not go back.
    """

    def __init__(self) -> None:
        self._lanes: list[AnyLane] = []
        self._on_trial: list[AnyLane] = []
        self._rest = FIRST_REST
        self._due = 0.0
        self._went_well = False

    def turned_away(self, lanes: Sequence[AnyLane], *, now: float) -> None:
        """A job found no room: `lanes` rest, and the rest of the others begins anew."""
        if self._on_trial:
            self._rest = min(2 * self._rest, LONGEST_REST)
            self._on_trial.clear()
        self._lanes += lanes
        self._due, self._went_well = now + self._rest, False

    def ended_well(self, lane: AnyLane) -> None:
        """A job in `lane` did."""
        self._went_well = True
        if lane in self._on_trial:
            self._on_trial.remove(lane)
            self._rest = FIRST_REST

    def back(self, *, now: float) -> AnyLane | None:
        """The lane whose rest is over, if there is one: the one that has rested longest."""
        if not self._lanes or not self._went_well or now < self._due:
            return None
        self._due = now + APART
        lane = self._lanes.pop(0)
        self._on_trial.append(lane)
        return lane
