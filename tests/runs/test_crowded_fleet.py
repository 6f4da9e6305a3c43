"""Fleets on a device whose room changes, by a clock that only work and sleep move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from warp_unlearning.runs import fleet, job_schedule
from warp_unlearning.runs.engine import EngineError, Outcome
from warp_unlearning.runs.events import Event, ignore
from warp_unlearning.runs.fleet import Fleet
from warp_unlearning.runs.fleet_engine import FleetEngine
from warp_unlearning.runs.job_attempt import Attempt
from warp_unlearning.runs.jobs import Job, NoRoom, Steps
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store

ROUND = 1.0
"""Seconds that a round of steps takes, however many jobs take part in it."""


@dataclass
class Clock:
    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class Begun:
    at: float
    number: int
    lane: int
    end: str = ""


class Device:
    """Jobs of four steps on a device that holds `room(seconds since the beginning)` of them."""

    def __init__(self, clock: Clock, room: Callable[[float], int]) -> None:
        self.clock, self.room, self.zero = clock, room, clock.now
        self.running: list[Begun] = []
        self.begun: list[Begun] = []
        self.crowd: list[tuple[float, int]] = []
        self.lane = -1
        self.rests: list[tuple[float, int]] = []

    def steps(self, job: Job, store: Store) -> Steps:
        here = Begun(self.time, job.key.ingredients["i"], self.lane)
        self.begun.append(here)
        self.running.append(here)
        try:
            if job.key.ingredients.get("raises"):
                raise ValueError("a defect")
            for _ in range(4):
                if len(self.running) > self.room(self.time):
                    here.end = "crowded"
                    raise NoRoom(f"no room for job {here.number}")
                self.crowd.append((self.time, len(self.running)))
                yield None
                self.clock.now += ROUND / len(self.running)
            here.end = "finished"
            return {"result": b""}
        finally:
            self.running.remove(here)

    @property
    def time(self) -> float:
        return self.clock.now - self.zero

    def __call__(self, job: Job, store: Store) -> dict[str, bytes]:
        raise NotImplementedError

    @property
    def crowded(self) -> list[Begun]:
        return [one for one in self.begun if one.end == "crowded"]

    def most(self, since: float, until: float) -> int:
        return max(count for at, count in self.crowd if since <= at < until)


@dataclass
class Lane:
    device: Device
    number: int

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.device.lane = self.number
        yield

    def rest(self) -> None:
        self.device.rests.append((self.device.time, self.number))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(fleet, "sleep", made.sleep)
    for module in (fleet, job_schedule):
        monkeypatch.setattr(module, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def jobs_of(count: int, *, kind: str = "a") -> list[Job]:
    return [Job(Key(kind, 1, {"i": i})) for i in range(count)]


def carry_out(device: Device, jobs: list[Job], store: Store, *, lanes: int = 4, budget: float | None = None) -> Outcome:
    numbers = iter(range(lanes))
    engine = FleetEngine(lanes, lambda: Lane(device, next(numbers)))
    until = None if budget is None else device.clock.now + budget
    return engine.run(jobs, work=device, store=store, watch=ignore, until=until)


def test_lanes_come_back_when_there_is_room_again(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 1 if 10 <= now < 40 else 4)
    outcome = carry_out(device, jobs_of(80), store)
    assert outcome.complete
    assert device.most(0, 10) == 4
    assert device.most(11, 40) == 1
    assert device.most(60, 75) == 4
    assert len(device.crowded) < 8
    assert clock.slept == []


def test_a_device_that_is_too_small_is_tried_ever_less_often(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 2)
    assert carry_out(device, jobs_of(400), store, lanes=3).complete
    times = [one.at for one in device.crowded]
    gaps = [b - a for a, b in pairwise(times)]
    for gap, rest in zip(gaps, (15, 30, 60, 120, 240, 240, 240), strict=True):
        assert rest <= gap < rest + 8


def test_the_rest_is_short_again_after_a_job_ended_well(clock: Clock, store: Store) -> None:
    tight = ((10, 40), (150, 152))
    device = Device(clock, lambda now: 2 if any(a <= now < b for a, b in tight) else 3)
    assert carry_out(device, jobs_of(200), store, lanes=3).complete
    assert len(device.crowded) == 3
    assert device.most(152, 160) == 2
    assert device.most(167, 175) == 3


def test_a_job_put_back_is_taken_first_and_by_another_lane(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 2)
    assert carry_out(device, jobs_of(6), store, lanes=3).complete
    (away,) = device.crowded
    after = device.begun[device.begun.index(away) + 1 :]
    again = next(one for one in after if one.number == away.number)
    assert again.lane != away.lane
    assert [one.number for one in device.begun if one.end == "finished"][2] == away.number
    assert [one.number for one in device.begun].count(away.number) == 2


def test_idle_lanes_rest_with_the_one_that_found_no_room(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 1)
    assert carry_out(device, jobs_of(2), store, lanes=8).complete
    assert len(device.begun) == 3
    assert clock.slept == []


@pytest.mark.parametrize("together", [1, 2], ids=["alone", "beside another"])
def test_lanes_that_rested_idle_come_back_too(clock: Clock, store: Store, together: int) -> None:
    device = Device(clock, lambda now: together - 1 if now < 10 else 99)
    first = jobs_of(together)
    later = [Job(Key("later", 1, {"i": i}), tuple(job.key for job in first)) for i in range(40)]
    assert carry_out(device, [*first, *later], store).complete
    assert len(device.crowded) == 1
    assert device.most(20, 35) == 4
    assert max(count for _, count in device.crowd) == 4
    assert {one.lane for one in device.begun} == set(range(4))


def test_a_job_that_is_alone_is_tried_again_after_growing_pauses(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0 if now < 40 else 1)
    jobs = jobs_of(2)
    outcome = carry_out(device, jobs, store, lanes=1)
    assert outcome.finished == tuple(job.key for job in jobs)
    assert [one.number for one in device.begun] == [0, 0, 0, 1]
    assert clock.slept == [15.0, 30.0]


def test_pauses_are_short_again_after_a_job_of_the_kind_ended_well(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0 if now < 40 or 60 <= now < 70 else 1)
    assert carry_out(device, jobs_of(8), store, lanes=1).complete
    assert clock.slept == [15.0, 30.0, 15.0]


def test_a_job_that_finds_no_room_alone_fails_in_the_end(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0)
    jobs = jobs_of(1)
    outcome = carry_out(device, jobs, store)
    assert outcome.failed == {jobs[0].key: "no room for job 0"}
    assert clock.slept == [15.0, 30.0, 60.0]
    assert len(device.begun) == 4


def test_the_next_job_of_a_kind_that_found_no_room_is_tried_again_once(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0)
    outcome = carry_out(device, [*jobs_of(3), *jobs_of(1, kind="b")], store, lanes=1)
    assert len(outcome.failed) == 4
    assert clock.slept == [15.0, 30.0, 60.0] + 2 * [60.0] + [15.0, 30.0, 60.0]


def test_a_job_that_raises_does_not_show_that_there_is_room(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0)
    first, last = jobs_of(2)
    outcome = carry_out(device, [first, Job(Key("a", 1, {"i": 7, "raises": True})), last], store, lanes=1)
    assert [one.number for one in device.begun] == [0, 0, 0, 0, 7, 1, 1]
    assert len(outcome.failed) == 3
    assert clock.slept == [15.0, 30.0, 60.0, 60.0]


def test_all_lanes_come_back_after_one_job_alone_found_room(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0 if now < 100 else 4)
    outcome = carry_out(device, jobs_of(60), store)
    assert outcome.complete
    assert clock.slept == [15.0, 30.0, 60.0]
    assert device.most(105, 109) == 1
    assert device.most(109, 111) == 2
    assert device.most(111, 113) == 3
    assert device.most(113, 115) == 4


def test_a_budget_ends_a_pause(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0)
    jobs = jobs_of(2)
    outcome = carry_out(device, jobs, store, budget=20.0)
    assert clock.slept == [15.0, 5.0]
    assert outcome.left == tuple(job.key for job in jobs)
    assert not outcome.failed


def test_a_run_whose_time_is_up_does_not_wait_for_resting_lanes(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 1)
    outcome = carry_out(device, jobs_of(9), store, budget=6.0)
    assert len(outcome.finished) == 2
    assert len(outcome.left) == 7
    assert clock.slept == []
    assert device.time == 8.0


def test_it_is_told_when_a_job_finds_no_room(clock: Clock, store: Store) -> None:
    told: list[Event] = []
    device = Device(clock, lambda now: 1 if now < 5 else 2)
    engine = FleetEngine(2, lambda: Lane(device, 0))
    assert engine.run(jobs_of(6), work=device, store=store, watch=told.append).complete
    turned_away = [event for event in told if event.what == "retried"]
    assert len(turned_away) == len(device.crowded) > 0
    assert all(event.reason.startswith("no room for job") for event in turned_away)


def test_who_waits_for_room_gives_back_what_is_kept_before(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 0 if now < 40 else 1)
    assert carry_out(device, jobs_of(2), store, lanes=2).complete
    pauses = [one.at for one in device.crowded if one.lane == device.crowded[-1].lane][-2:]
    assert pauses == [0, 15]
    assert device.rests == [(at, lane) for at in pauses for lane in (0, 1)]


class Late:
    """Jobs of which the second comes after so many seconds, and then no more."""

    def __init__(self, clock: Clock, jobs: list[Job], seconds: float) -> None:
        self.clock, self.jobs, self.at = clock, jobs, clock.now + seconds
        self.time_left = inf
        self.ended: list[str] = []

    @property
    def over(self) -> bool:
        return len(self.ended) == 2

    def take(self) -> Job | None:
        return self.jobs.pop(0) if len(self.jobs) == 2 or (self.jobs and self.clock.now >= self.at) else None

    def pause(self) -> float | None:
        return None

    def put_back(self, job: Job) -> None:
        raise NotImplementedError

    def settle(self, job: Job, attempt: Attempt) -> None:
        self.ended.append(attempt.end)


def test_who_has_nothing_to_do_gives_it_back_after_a_second(clock: Clock, store: Store) -> None:
    device = Device(clock, lambda now: 1)
    numbers = iter(range(2))
    late = Late(clock, jobs_of(2), seconds=30)
    Fleet(2, lambda: Lane(device, next(numbers)), device.steps, store, ignore).carry_out(late)
    assert late.ended == ["finished", "finished"]
    idle = device.begun[0].at + ROUND * 4
    assert [lane for _, lane in device.rests] == [0, 1]
    assert all(idle + 1 <= at < idle + 1.5 for at, _ in device.rests)


def test_a_device_that_fails_while_it_rests_ends_the_fleet(
    clock: Clock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Lane) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Lane, "rest", fail)
    device = Device(clock, lambda now: 1)
    with pytest.raises(EngineError, match="a lane failed, and this process can do no more: CUDA error"):
        Fleet(1, lambda: Lane(device, 0), device.steps, store, ignore).carry_out(Late(clock, jobs_of(2), seconds=30))
