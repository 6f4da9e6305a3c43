"""What must hold however a plan is drained: in this process, in lanes, in others, in others with lanes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, time

import pytest
from trial_work import FailingLane, Trial, bad_name, expected, layered, no_mapping, results, sound

from warp_unlearning.errors import InputError
from warp_unlearning.runs import drain as module
from warp_unlearning.runs.drain import Engine, EngineError, PlainLane, drain, drain_nothing, outcome
from warp_unlearning.runs.jobs import Job, Work
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local import Lanes, run_here, run_local
from warp_unlearning.runs.store import Failure, Store, StoreError

ENGINES: dict[str, Engine] = {
    "here": run_here,
    "here in lanes": partial(run_here, lanes=Lanes(3)),
    "processes": partial(run_local, workers=2),
    "processes with lanes": partial(run_local, workers=2, lanes=Lanes(2)),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    (tmp_path / "marks").mkdir()
    return Trial(tmp_path / "marks")


def does(what: str, **more: object) -> Key:
    return Key("k", 1, {"does": what, **more})


def test_every_job_is_done_once_in_order_of_need(engine: Engine, store: Store, trial: Trial) -> None:
    jobs = layered(4, sleep=0.01)
    first = engine(jobs, trial, store)
    assert set(first.done) == {job.key for job in jobs}
    assert first.complete
    assert results(store, jobs) == expected(jobs)
    assert all(trial.begun(job.key) == 1 for job in jobs)
    order = trial.in_order()
    for job in jobs:
        assert all(order.index(need.digest) < order.index(job.key.digest) for need in job.needs)
        seconds = store.read(job.key).seconds
        assert seconds is not None
        assert seconds >= 0.01
    again = engine(jobs, trial, store)
    assert set(again.found) == {job.key for job in jobs}
    assert not again.done
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert not list((store.root / "claims").iterdir())


def test_failures_stay_with_what_hangs_on_them(engine: Engine, store: Store, trial: Trial) -> None:
    good, known, defect, quits = (does(what) for what in ("good", "raise", "defect", "exit"))
    after, blocked, further = (does("good", after=name) for name in ("good", "defect", "blocked"))
    told: list[dict[str, Failure]] = []
    found = engine(
        [
            *(Job(key) for key in (good, known, defect, quits)),
            *(Job(after, (good,)), Job(blocked, (good, defect)), Job(further, (blocked,))),
        ],
        trial,
        store,
        watch=lambda failures: told.append(dict(failures)),
    )
    assert set(found.done) == {good, after}
    assert found.failed == {
        known: "the lamp is out",
        defect: "ZeroDivisionError: by nought",
        quits: "SystemExit: enough",
    }
    assert set(found.blocked) == {blocked, further}
    assert not found.left
    assert trial.begun(known) == 1
    assert "trial_work.py" in told[-1][defect.digest].traceback
    # A failure counts for its run alone.
    assert engine([Job(known)], trial, store).failed
    assert trial.begun(known) == 2


@pytest.mark.parametrize(
    ("work", "words"), [(no_mapping, "returned None where the files"), (bad_name, "called '../outside'")]
)
def test_work_that_returns_no_files_fails_its_job(engine: Engine, store: Store, work: Work, words: str) -> None:
    key = Key("k", 1, {})
    assert words in engine([Job(key)], work, store).failed[key]


def test_a_damaged_need_is_made_again(engine: Engine, store: Store, trial: Trial) -> None:
    jobs = layered(2, sleep=0.0)
    engine(jobs, trial, store)
    needed = Key("train", 1, {"seed": 1, "sleep": 0.0})
    store.remove(*(job.key.digest for job in jobs if job.key.kind != "train"))
    path = store.path(needed.digest)
    path.write_bytes(path.read_bytes()[:-1])
    assert engine(jobs, trial, store).complete
    assert results(store, jobs) == expected(jobs)
    assert trial.begun(needed) == 2


def test_a_need_that_is_damaged_each_time_fails_what_needs_it(engine: Engine, store: Store, trial: Trial) -> None:
    needed, wrecker = does("good"), does("spoil what it needs")
    found = engine([Job(needed), Job(wrecker, (needed,))], trial, store)
    assert "for the 4th time; check the disk" in found.failed[wrecker]
    # Several processes count their losses each for itself.
    assert 4 <= trial.begun(wrecker) <= 7
    assert needed in found.done


def test_what_is_needed_must_be_there_or_a_job(engine: Engine, store: Store, trial: Trial) -> None:
    outside, key = does("outside"), does("good")
    with pytest.raises(InputError, match="which is neither a job of this run nor in"):
        engine([Job(key, (outside,))], trial, store)
    store.write(outside, {"result.bin": b"x"})
    path = store.path(outside.digest)
    path.write_bytes(path.read_bytes()[:-1])
    found = engine([Job(key, (outside,))], trial, store)
    assert "it is no job that this one needs in this run" in found.failed[key]


def test_no_job_is_begun_after_the_time_is_up(engine: Engine, store: Store, trial: Trial) -> None:
    found = engine(layered(2, sleep=0.0), trial, store, until=time())
    assert len(found.left) == 7
    assert not trial.processes()
    jobs = [Job(does("good", sleep=1.5, i=i)) for i in range(12)]
    found = engine(jobs, trial, store, until=time() + 1.0)
    assert found.left
    assert len(found.done) + len(found.left) == 12
    assert sum(trial.begun(job.key) for job in jobs) == len(found.done)


def test_a_store_that_takes_no_more_ends_the_run_with_one_clear_error(
    engine: Engine, store: Store, trial: Trial
) -> None:
    jobs = [Job(does("fill the disk"), cost=2.0), *(Job(does("good", sleep=0.5, i=i)) for i in (1, 2))]
    with pytest.raises(StoreError, match=r"cannot (write the entry|list)"):
        engine(jobs, trial, store)


def test_what_the_watcher_raises_ends_the_run(engine: Engine, store: Store, trial: Trial) -> None:
    def broken(failures: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        engine(layered(2, sleep=0.2), trial, store, watch=broken)


def test_jobs_come_by_order_then_by_the_chain_behind_them(store: Store, trial: Trial) -> None:
    late, long, early = does("good", n=1), does("good", n=2), does("good", n=3)
    behind = does("good", n=4)
    jobs = [Job(late, cost=9.0, order=1), Job(early, cost=0.5), Job(long), Job(behind, (long,), cost=3.0)]
    assert run_here(jobs, trial, store).complete
    assert trial.in_order() == [key.digest for key in (long, behind, early, late)]


def test_lanes_of_a_process_take_turns(store: Store, trial: Trial) -> None:
    jobs = [Job(does("meet", i=i)) for i in range(2)]
    assert run_local(jobs, trial, store, workers=1, lanes=Lanes(2)).complete
    assert len(trial.processes()) == 1


def test_a_job_without_room_is_put_back_and_done_later(store: Store, trial: Trial) -> None:
    jobs = [Job(does("no room once")), *(Job(does("good", sleep=0.1, i=i)) for i in range(4))]
    assert run_here(jobs, trial, store, lanes=Lanes(3)).complete
    assert trial.begun(jobs[0].key) == 2
    assert not list((store.root / "claims").iterdir())


class Resting(PlainLane):
    rested = 0

    def rest(self) -> None:
        type(self).rested += 1


def test_a_job_that_finds_no_room_alone_is_tried_after_growing_pauses_then_fails(
    store: Store, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.1, 0.2, 0.4))
    first, second = does("no room"), does("no room", i=2)
    began = monotonic()
    found = run_here([Job(first, cost=2.0), Job(second)], trial, store, lanes=Lanes(1, Resting))
    assert found.failed == {first: "full", second: "full"}
    # The second waits only once.
    assert (trial.begun(first), trial.begun(second)) == (4, 2)
    assert monotonic() - began >= 0.1 + 0.2 + 0.4 + 0.4
    assert Resting.rested == 4


def test_a_narrowed_process_widens_again(store: Store, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NARROW", 0.3)
    monkeypatch.setattr(module, "_PAUSES", (0.1, 0.1, 0.1))
    jobs = [Job(does("no room once", i=i), cost=9.0) for i in range(3)]
    jobs += [Job(does("good", sleep=0.2, i=i)) for i in range(3)] + [Job(does("meet", last=i), order=1) for i in (1, 2)]
    assert run_here(jobs, trial, store, lanes=Lanes(2)).complete


@pytest.mark.parametrize("what", ["unfit", "lane"])
def test_a_process_whose_device_fails_says_so_or_is_replaced(store: Store, trial: Trial, what: str) -> None:
    unfit = what == "unfit"
    jobs = [Job(does("unfit once" if unfit else "good")), *(Job(does("good", i=i)) for i in range(4))]
    lanes = Lanes(1 if unfit else 2, PlainLane if unfit else FailingLane)
    FailingLane.turns = 0
    with pytest.raises(EngineError, match="What is finished is kept: start again"):
        run_here(jobs, trial, store, lanes=lanes)
    FailingLane.turns = 0
    for mark in trial.marks.iterdir():
        mark.unlink()
    found = run_local(jobs, trial, store, workers=1, lanes=lanes, retries=3)
    assert found.complete, found.failed
    assert len(trial.processes()) >= 2


def test_a_job_that_no_process_is_fit_for_fails(store: Store, trial: Trial) -> None:
    jobs = [Job(does("unfit")), *(Job(does("good", i=i)) for i in range(3))]
    found = run_local(jobs, trial, store, workers=1, lanes=Lanes(2))
    assert found.failed == {jobs[0].key: "its process died 2 times, perhaps for want of memory"}
    assert len(found.done) == 3


def test_nothing_is_drained_for_a_look(store: Store, trial: Trial) -> None:
    jobs = layered(2, sleep=0.0)
    store.write(jobs[1].key, {"result.bin": b""})
    found = drain_nothing(jobs, trial, store)
    assert found.found == (jobs[1].key,)
    assert len(found.left) == 6
    assert not trial.processes()


def test_several_drain_one_plan_and_each_job_is_done_once(store: Store, trial: Trial) -> None:
    jobs, children = layered(6, sleep=0.02), []
    for _ in range(3):
        child = os.fork()
        if not child:
            drain(jobs, trial, store, run="together")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert outcome(jobs, store, "together").complete
    assert results(store, jobs) == expected(jobs)
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert len(trial.processes()) == 3


def test_writers_without_locks_leave_nothing_that_is_taken_for_whole(
    store: Store, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the locks of a network disk do not hold, results may be done twice, and are checked all the same."""
    monkeypatch.setattr("warp_unlearning.runs.store.FileLock", NoLock)
    (store.root / "entries").mkdir(parents=True)
    for name in ("claims", "failed"):
        (store.root / name).mkdir()
    (store.root / "store.json").write_text('{"what": "warp-unlearning store of results", "schema_version": 2}')
    jobs, children = layered(6, sleep=0.0), []
    for _ in range(3):
        child = os.fork()
        if not child:
            draining = partial(drain, jobs, trial, store, run="unlocked")
            os._exit(_tried(draining))
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    monkeypatch.undo()
    for digest in sound(store):
        store.set_aside(digest)
    assert run_here(jobs, trial, store).complete
    assert results(store, jobs) == expected(jobs)


def _tried(draining: Callable[[], None]) -> int:
    for _ in range(20):
        try:
            draining()
        except StoreError:
            continue
        return 0
    return 1


class NoLock:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    def acquire(self, timeout: float) -> None:
        pass

    def release(self) -> None:
        pass
