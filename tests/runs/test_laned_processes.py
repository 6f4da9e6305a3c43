from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest
from trial_work import EnvironmentTrial, FailingLane, NoLane, PlainLane, SteppedTrial, Trial, expected, layered, results

from warp_unlearning.errors import InputError
from warp_unlearning.runs.engine import EngineError
from warp_unlearning.runs.events import Event, ignore
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.lane_worker import Lanes
from warp_unlearning.runs.local_engine import LocalEngine
from warp_unlearning.runs.store import Store

TWO = Lanes(2, PlainLane)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def trial(tmp_path: Path) -> SteppedTrial:
    (tmp_path / "marks").mkdir()
    return SteppedTrial(tmp_path / "marks")


def test_processes_with_lanes_do_each_job_once(store: Store, trial: SteppedTrial) -> None:
    jobs = layered(4, sleep=0.05)
    events: list[Event] = []
    outcome = LocalEngine(workers=2, lanes=TWO).run(jobs, work=trial, store=store, watch=events.append)
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert len(trial.processes()) == 2
    assert [sum(e.what == what for e in events) for what in ("started", "finished")] == [len(jobs)] * 2


def test_a_process_does_several_jobs_at_once(store: Store, trial: SteppedTrial) -> None:
    jobs = [Job(Key("a", 1, {"i": i, "does": "meet"})) for i in range(4)]
    outcome = LocalEngine(workers=2, lanes=TWO).run(jobs, work=trial, store=store, watch=ignore)
    assert len(outcome.finished) == 4
    assert len(trial.processes()) == 2


def test_no_more_processes_than_their_lanes_can_use(store: Store, trial: SteppedTrial) -> None:
    jobs = [Job(Key("a", 1, {"i": i, "sleep": 0.05})) for i in range(2)]
    LocalEngine(workers=8, lanes=TWO).run(jobs, work=trial, store=store, watch=ignore)
    assert len(trial.processes()) == 1


def test_jobs_of_a_process_that_dies_are_done_again(store: Store, trial: SteppedTrial) -> None:
    fatal = Key("a", 1, {"does": "die once"})
    jobs = [Job(fatal), *(Job(Key("b", 1, {"i": i, "sleep": 0.02})) for i in range(6))]
    events: list[Event] = []
    engine = LocalEngine(workers=2, retries=2, lanes=TWO)
    outcome = engine.run(jobs, work=trial, store=store, watch=events.append)
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)
    assert trial.begun(fatal) == 2
    assert fatal in [e.key for e in events if e.what == "retried"]


def test_a_process_that_is_no_longer_fit_is_replaced(store: Store, trial: SteppedTrial) -> None:
    unfit = Key("a", 1, {"does": "unfit once"})
    jobs = [Job(unfit), *(Job(Key("b", 1, {"i": i, "sleep": 0.02})) for i in range(6))]
    events: list[Event] = []
    engine = LocalEngine(workers=1, retries=2, lanes=TWO)
    outcome = engine.run(jobs, work=trial, store=store, watch=events.append)
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)
    told = {e.key: e.reason for e in events if e.what == "retried"}
    assert told[unfit].startswith("the device broke. What is finished is kept")
    assert len(trial.processes()) == 2


def test_a_job_that_no_process_is_fit_for_fails(store: Store, trial: SteppedTrial) -> None:
    unfit, good = Key("a", 1, {"does": "unfit"}), Key("b", 1, {"sleep": 0.02})
    engine = LocalEngine(workers=1, retries=2, lanes=Lanes(1, PlainLane))
    outcome = engine.run([Job(unfit), Job(good)], work=trial, store=store, watch=ignore)
    assert list(outcome.failed) == [unfit]
    assert "it was tried 3 times" in outcome.failed[unfit]
    assert outcome.finished == (good,)


def test_a_process_whose_device_fails_is_replaced(store: Store, trial: SteppedTrial) -> None:
    jobs = [Job(Key("b", 1, {"i": i})) for i in range(3)]
    engine = LocalEngine(workers=1, retries=3, lanes=Lanes(1, FailingLane))
    outcome = engine.run(jobs, work=trial, store=store, watch=ignore)
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)


def test_a_job_without_room_is_told_of_and_done_later(store: Store, trial: SteppedTrial) -> None:
    crowded = Key("a", 1, {"does": "no room"})
    jobs = [Job(crowded, cost=9.0), *(Job(Key("b", 1, {"i": i, "sleep": 0.05})) for i in range(3))]
    events: list[Event] = []
    outcome = LocalEngine(workers=1, lanes=TWO).run(jobs, work=trial, store=store, watch=events.append)
    assert outcome.complete
    assert [(e.key, e.reason) for e in events if e.what == "retried"] == [(crowded, "full")]


def test_the_neighbours_of_a_job_that_always_dies_are_done(store: Store, trial: SteppedTrial) -> None:
    fatal = Key("a", 1, {"does": "die"})
    jobs = [Job(fatal), *(Job(Key("b", 1, {"i": i, "sleep": 0.02})) for i in range(4))]
    outcome = LocalEngine(workers=1, retries=1, lanes=TWO).run(jobs, work=trial, store=store, watch=ignore)
    assert list(outcome.failed) == [fatal]
    assert len(outcome.finished) == 4


def test_a_process_without_lanes_ends_the_run_and_says_why(store: Store, trial: SteppedTrial) -> None:
    engine = LocalEngine(workers=2, lanes=Lanes(1, NoLane))
    with pytest.raises(EngineError, match="nowhere to work: OSError: no driver"):
        engine.run([Job(Key("a", 1, {}))], work=trial, store=store, watch=ignore)


def test_no_job_is_begun_after_the_time_is_up(store: Store, trial: SteppedTrial) -> None:
    crowded = Key("a", 1, {"does": "no room"})
    jobs = [Job(crowded, cost=9.0), Job(Key("b", 1, {"sleep": 1.0}))]
    began = monotonic()
    engine = LocalEngine(workers=1, lanes=TWO)
    # Its lane rests while the other job is done, and by then it is too late.
    outcome = engine.run(jobs, work=trial, store=store, watch=ignore, until=began + 0.8)
    assert crowded in outcome.left
    assert crowded not in outcome.finished


def test_a_job_that_raises_fails_alone(store: Store, trial: SteppedTrial) -> None:
    bad, good = Key("a", 1, {"does": "raise"}), Key("b", 1, {})
    outcome = LocalEngine(workers=1, lanes=TWO).run([Job(bad), Job(good)], work=trial, store=store, watch=ignore)
    assert outcome.failed == {bad: "the lamp is out"}
    assert outcome.finished == (good,)


def test_an_interrupt_keeps_what_is_finished(store: Store, trial: SteppedTrial) -> None:
    jobs = layered(3, sleep=0.02)

    def interrupt(event: Event) -> None:
        if event.what == "finished":
            raise KeyboardInterrupt

    engine = LocalEngine(workers=2, lanes=TWO)
    with pytest.raises(KeyboardInterrupt):
        engine.run(jobs, work=trial, store=store, watch=interrupt)
    assert results(store, jobs)
    assert engine.run(jobs, work=trial, store=store, watch=ignore).complete
    assert results(store, jobs) == expected(jobs)


def test_workers_have_their_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIAL", "here")
    job = Job(Key("a", 1, {}))
    engine = LocalEngine(workers=1, lanes=TWO, environment={"TRIAL": "there"})
    engine.run([job], work=EnvironmentTrial(), store=store, watch=ignore)
    assert results(store, [job]) == {job.key: b"there"}


def test_bad_input(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 lanes"):
        Lanes(0, PlainLane)
    with pytest.raises(InputError, match="step by step"):
        LocalEngine(workers=1, lanes=TWO).run([], work=Trial(tmp_path), store=store, watch=ignore)
