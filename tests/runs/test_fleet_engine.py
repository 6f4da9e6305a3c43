from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from trial_work import FailingLane, SteppedTrial, Trial, expected, layered, results

from warp_unlearning.errors import InputError
from warp_unlearning.runs.engine import Engine, EngineError
from warp_unlearning.runs.events import Event, ignore
from warp_unlearning.runs.fleet_engine import FleetEngine
from warp_unlearning.runs.jobs import Job, NoRoom, Steps
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local_engine import LocalEngine
from warp_unlearning.runs.store import Store


class Turns:
    """A lane that counts turns."""

    def __init__(self) -> None:
        self.taken = self.rested = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.taken += 1
        yield

    def rest(self) -> None:
        self.rested += 1


class Stepped(Trial):
    """A trial in three steps, which notes who is under way at each; at most `room` find room at once."""

    def steps(self, job: Job, store: Store) -> Steps:
        running = self.__dict__.setdefault("running", {})
        running[job.key.digest] = None
        self.__dict__.setdefault("most", []).append(len(running))
        try:
            for _ in range(3):
                if len(running) > job.key.ingredients.get("room", 99):
                    raise NoRoom("full")
                yield
            return self(job, store)
        finally:
            del running[job.key.digest]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def work(tmp_path: Path) -> Stepped:
    (tmp_path / "marks").mkdir()
    return Stepped(tmp_path / "marks")


def test_jobs_take_turns_in_order_of_need(store: Store, work: Stepped) -> None:
    jobs, lanes = layered(5, sleep=0.0), [Turns() for _ in range(3)]
    spare = list(lanes)
    outcome = FleetEngine(3, spare.pop).run(jobs, work=work, store=store, watch=ignore)
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)
    assert max(work.__dict__["most"]) == 3
    assert sum(lane.taken for lane in lanes) == 4 * len(jobs)
    assert all(work.begun(job.key) == 1 for job in jobs)


def test_the_same_results_as_in_processes(tmp_path: Path, work: Stepped) -> None:
    jobs, stores = layered(3, sleep=0.0), [Store(tmp_path / name) for name in "ab"]
    FleetEngine(2, Turns).run(jobs, work=work, store=stores[0], watch=ignore)
    LocalEngine(workers=1).run(jobs, work=Trial(work.marks), store=stores[1], watch=ignore)
    assert results(stores[0], jobs) == results(stores[1], jobs)


def test_a_job_that_raises_fails_alone(store: Store, work: Stepped) -> None:
    bad, good = Key("a", 1, {"does": "raise"}), Key("b", 1, {})
    needy = Key("c", 1, {})
    events: list[Event] = []
    jobs = [Job(bad), Job(good), Job(needy, (bad,))]
    outcome = FleetEngine(2, Turns).run(jobs, work=work, store=store, watch=events.append)
    assert outcome.finished == (good,)
    assert outcome.failed == {bad: "the lamp is out"}
    assert outcome.blocked == (needy,)
    assert [e.what for e in events if e.key == bad] == ["started", "failed"]


def test_a_job_without_room_waits_for_another_to_end(store: Store, work: Stepped) -> None:
    jobs = [Job(Key("a", 1, {"i": i, "room": 2})) for i in range(6)]
    outcome = FleetEngine(4, Turns).run(jobs, work=work, store=store, watch=ignore)
    assert len(outcome.finished) == 6


def test_an_interrupt_lets_go_of_claims_and_keeps_what_is_finished(store: Store, work: Stepped) -> None:
    jobs = layered(4, sleep=0.0)

    def interrupt(event: Event) -> None:
        if event.what == "finished" and len(results(store, jobs)) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FleetEngine(3, Turns).run(jobs, work=work, store=store, watch=interrupt)
    kept = results(store, jobs)
    assert len(kept) == 2
    outcome = FleetEngine(3, Turns).run(jobs, work=work, store=store, watch=ignore)
    assert outcome.complete
    assert len(outcome.skipped) == 2
    assert results(store, jobs) == expected(jobs)


def test_no_job_is_begun_after_the_time_is_up(store: Store, work: Stepped) -> None:
    jobs = [Job(Key("a", 1, {"i": i, "sleep": 0.2})) for i in range(4)]
    engines: list[tuple[Engine, Trial]] = [(FleetEngine(1, Turns), work), (LocalEngine(workers=1), Trial(work.marks))]
    for engine, trial in engines:
        before = len(results(store, jobs))
        outcome = engine.run(jobs, work=trial, store=store, watch=ignore, until=time.monotonic() + 0.1)
        assert not outcome.complete
        assert len(outcome.finished) <= 1
        assert len(outcome.left) == len(jobs) - before - len(outcome.finished)
    assert FleetEngine(1, Turns).run(jobs, work=work, store=store, watch=ignore).complete


def test_jobs_of_a_lower_order_come_first(store: Store, work: Stepped) -> None:
    jobs = [Job(Key("a", 1, {"i": i}), order=-i, cost=10.0 - i) for i in range(4)]
    seen: list[Key] = []
    FleetEngine(1, Turns).run(
        jobs, work=work, store=store, watch=lambda e: seen.append(e.key) if e.what == "started" else None
    )
    assert seen == [job.key for job in reversed(jobs)]


def test_a_process_that_is_no_longer_fit_stops_and_says_so(store: Store, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    work = SteppedTrial(tmp_path / "marks")
    jobs = [Job(Key("a", 1, {"does": "unfit"})), *(Job(Key("b", 1, {"i": i})) for i in range(4))]
    with pytest.raises(EngineError, match=r"the device broke\. What is finished is kept: start again"):
        FleetEngine(2, Turns).run(jobs, work=work, store=store, watch=ignore)
    assert FleetEngine(2, Turns).run(jobs[1:], work=work, store=store, watch=ignore).complete


def test_a_lane_that_fails_ends_the_run_and_says_so(store: Store, work: Stepped) -> None:
    jobs = [Job(Key("b", 1, {"i": i})) for i in range(4)]
    with pytest.raises(EngineError, match=r"a lane failed.*illegal memory access was encountered\. What is finished"):
        FleetEngine(1, FailingLane).run(jobs, work=work, store=store, watch=ignore)
    assert len(results(store, jobs)) == 1
    assert FleetEngine(1, Turns).run(jobs, work=work, store=store, watch=ignore).complete


def test_bad_input(store: Store, work: Stepped) -> None:
    with pytest.raises(InputError, match="0 jobs at once"):
        FleetEngine(0, Turns)
    with pytest.raises(InputError, match="step by step"):
        FleetEngine(1, Turns).run([], work=Trial(work.marks), store=store, watch=ignore)
