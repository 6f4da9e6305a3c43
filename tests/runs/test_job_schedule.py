from __future__ import annotations

from pathlib import Path

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.runs import job_schedule
from warp_unlearning.runs.events import Event
from warp_unlearning.runs.job_attempt import Attempt
from warp_unlearning.runs.job_schedule import Schedule
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store, StoreError

A, B, C, D = (Key("k", 1, {"name": name}) for name in "abcd")
FINISHED = Attempt("finished", seconds=0.5)


class Run:
    """A schedule, what it told, and a store to put results in."""

    def __init__(self, path: Path, jobs: list[Job], *, there: tuple[Key, ...] = (), retries: int = 1) -> None:
        self.store = Store(path / "store")
        for key in there:
            self.store.write(key, {})
        self.events: list[Event] = []
        self.schedule = Schedule(jobs, store=self.store, watch=self.events.append, retries=retries)

    def told(self) -> list[tuple[str, Key]]:
        return [(event.what, event.key) for event in self.events]

    def take(self) -> Job:
        job = self.schedule.take()
        assert job is not None
        return job

    def finish(self, job: Job) -> None:
        self.store.write(job.key, {})
        self.schedule.settle(job, FINISHED)

    def run_out(self) -> list[Key]:
        """Finish all that can start, one after the other."""
        done = []
        while (job := self.schedule.take()) is not None:
            done.append(job.key)
            self.finish(job)
        return done


def test_the_longest_chain_first_and_needs_before_what_needs_them(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A, cost=3.0), Job(B, cost=1.0), Job(C, (B,), cost=5.0), Job(D, (A, C), cost=1.0)])
    assert run.schedule.left == 4
    first, second = run.take(), run.take()
    assert (first.key, second.key) == (B, A)
    assert run.schedule.take() is None
    run.finish(second)
    assert run.schedule.take() is None
    run.finish(first)
    assert run.run_out() == [C, D]
    assert run.schedule.over
    assert run.schedule.left == 0
    outcome = run.schedule.outcome()
    assert set(outcome.finished) == {A, B, C, D}
    assert outcome.complete
    assert run.told() == [("finished", A), ("finished", B), ("finished", C), ("finished", D)]
    assert {event.seconds for event in run.events} == {0.5}


def test_what_is_in_the_store_is_found_and_not_done(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,)), Job(C, (B,))], there=(A, B))
    assert run.told() == [("found", A), ("found", B)]
    assert run.run_out() == [C]
    assert run.schedule.outcome().skipped == (A, B)


def test_what_another_process_put_there_meanwhile_is_found(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,)), Job(C)])
    run.store.write(A, {})
    assert set(run.run_out()) == {B, C}
    assert ("found", A) in run.told()
    assert run.schedule.outcome().skipped == (A,)


def test_the_result_of_a_finished_job_is_used_though_its_needs_are_gone(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(B, (A,)), Job(C, (B,))], there=(A, B))
    assert run.run_out() == [C]


def test_a_need_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"the job {B} needs {A}, which is neither"):
        Run(tmp_path, [Job(B, (A,))])


def test_a_failure_blocks_what_hangs_on_it_and_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,)), Job(C, (B,)), Job(D)])
    job = run.take()
    assert job.key == A
    run.schedule.settle(job, Attempt("failed", reason="no luck", traceback="Traceback"))
    assert run.run_out() == [D]
    assert run.schedule.over
    outcome = run.schedule.outcome()
    assert outcome.failed == {A: "no luck"}
    assert outcome.blocked == (B, C)
    assert outcome.finished == (D,)
    assert not outcome.complete
    assert run.told() == [("failed", A), ("blocked", B), ("blocked", C), ("finished", D)]
    assert run.events[0].traceback == "Traceback"
    assert run.events[2].reason == f"it needs {A}, which failed"


def test_a_job_whose_process_died_is_retried_so_many_times(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A)], retries=2)
    for _ in range(3):
        run.schedule.died(run.take(), "killed")
    assert run.schedule.over
    assert run.told() == [("retried", A), ("retried", A), ("failed", A)]
    assert run.schedule.outcome().failed == {A: "killed; it was tried 3 times"}


def test_a_job_that_was_never_begun_is_not_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A)], retries=0)
    for _ in range(3):
        run.schedule.put_back(run.take())
    assert run.run_out() == [A]


def test_a_job_that_another_process_does_is_asked_about_after_a_growing_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(job_schedule, "monotonic", lambda: clock[0])
    run = Run(tmp_path, [Job(A)])
    assert run.schedule.pause() is None
    waited = []
    for _ in range(8):
        run.schedule.settle(run.take(), Attempt("busy"))
        assert run.schedule.take() is None
        assert not run.schedule.over
        pause = run.schedule.pause()
        assert pause is not None
        waited.append(round(pause, 6))
        clock[0] += pause
    assert waited == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    run.store.write(A, {})
    assert run.schedule.take() is None
    assert run.schedule.over
    assert run.told() == [("found", A)]


def test_a_lost_result_is_made_again_before_what_needs_it(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,)), Job(C, (A,))], there=(A,))
    first, second = run.take(), run.take()
    run.store.remove(A.digest)
    run.schedule.settle(first, Attempt("lost", reason="a flipped bit", lost=A.digest))
    redone = run.take()
    assert redone.key == A
    run.schedule.settle(second, Attempt("lost", reason="not there", lost=A.digest))
    assert run.schedule.take() is None
    run.finish(redone)
    assert set(run.run_out()) == {B, C}
    assert run.told()[:3] == [("found", A), ("redone", A), ("finished", A)]
    assert [event.reason for event in run.events if event.what == "redone"] == ["a flipped bit"]
    outcome = run.schedule.outcome()
    assert set(outcome.finished) == {A, B, C}
    assert outcome.skipped == ()


def test_a_loss_that_was_repaired_meanwhile_needs_no_other_repair(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,))], there=(A,))
    job = run.take()
    run.schedule.settle(job, Attempt("lost", reason="gone", lost=A.digest))
    assert run.run_out() == [B]
    assert ("redone", A) not in run.told()


def test_a_result_that_is_lost_each_time_fails_what_needs_it(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,))], there=(A,))
    for _ in range(3):
        job = run.take()
        assert job.key == B
        run.store.remove(A.digest)
        run.schedule.settle(job, Attempt("lost", reason="a flipped bit", lost=A.digest))
        run.finish(run.take())
    run.schedule.settle(run.take(), Attempt("lost", reason="a flipped bit", lost=A.digest))
    assert run.schedule.over
    assert "check the disk" in run.schedule.outcome().failed[B]


def test_a_lost_result_that_cannot_be_made_again_blocks(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,)), Job(C, (A,)), Job(D, (A,))], there=(A,))
    first, second = run.take(), run.take()
    run.store.remove(A.digest)
    run.schedule.settle(first, Attempt("lost", reason="gone", lost=A.digest))
    run.schedule.settle(run.take(), Attempt("failed", reason="no luck"))
    run.schedule.settle(second, Attempt("lost", reason="gone", lost=A.digest))
    assert run.schedule.take() is None
    assert run.schedule.over
    outcome = run.schedule.outcome()
    assert outcome.failed == {A: "no luck"}
    assert set(outcome.blocked) == {B, C, D}


@pytest.mark.parametrize("jobs", [[Job(B, (A,))], [Job(A), Job(B)]])
def test_a_lost_result_that_is_no_job_or_no_need_fails_the_one_that_asked(tmp_path: Path, jobs: list[Job]) -> None:
    run = Run(tmp_path, jobs, there=(A,))
    run.schedule.settle(run.take(), Attempt("lost", reason="gone", lost=A.digest))
    assert run.schedule.outcome().failed[B].startswith("gone (it is no job")


def test_a_store_that_takes_no_more_ends_the_run_after_what_is_under_way(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B), Job(C)])
    first, second = run.take(), run.take()
    run.schedule.settle(first, Attempt("unusable", reason="the disk is full"))
    assert run.schedule.take() is None
    assert not run.schedule.over
    run.finish(second)
    assert run.schedule.over
    with pytest.raises(StoreError, match="the disk is full"):
        run.schedule.outcome()


def test_events_are_plain_data() -> None:
    assert Event("finished", A, at=5.0, seconds=0.0).as_json() == {
        "what": "finished",
        "kind": "k",
        "key": A.digest,
        "at": 5.0,
        "seconds": 0.0,
    }
    assert Event("failed", A, at=5.0, reason="no luck", traceback="T").as_json()["reason"] == "no luck"


def test_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(job_schedule, "monotonic", lambda: clock[0])
    schedule = Schedule([Job(A)], store=Store(tmp_path / "s"), watch=lambda _: None, retries=0, until=103.0)
    assert (schedule.time_left, schedule.over) == (3.0, False)
    for clock[0] in (103.0, 110.0):
        assert (schedule.time_left, schedule.over) == (0.0, True)
        assert schedule.take() is None
    assert Run(tmp_path, [Job(A)]).schedule.time_left == float("inf")


def test_a_job_without_room_has_its_turn_alone_when_the_others_have_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A, cost=4.0), Job(B, cost=3.0), Job(C, cost=2.0), Job(D, (A,))])
    crowded = Attempt("crowded", reason="full")
    a, b = run.take(), run.take()
    run.schedule.settle(a, crowded)
    c = run.take()
    run.schedule.settle(c, crowded)
    assert (a.key, b.key, c.key) == (A, B, C)
    assert run.schedule.take() is None
    assert not run.schedule.over
    run.finish(b)
    assert not run.schedule.over
    again = run.take()
    assert again.key == A
    assert run.schedule.take() is None
    run.finish(again)
    assert run.run_out() == [D, C]
    assert run.schedule.over
    assert run.schedule.outcome().complete
    assert [event.reason for event in run.events if event.what == "retried"] == ["full", "full"]


def test_a_job_that_has_no_room_even_alone_fails(tmp_path: Path) -> None:
    run = Run(tmp_path, [Job(A), Job(B, (A,))])
    run.schedule.settle(run.take(), Attempt("crowded", reason="full"))
    assert run.schedule.over
    assert run.schedule.outcome().failed == {A: "full"}
    assert run.schedule.outcome().blocked == (B,)
