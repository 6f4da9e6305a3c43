"""Jobs are expressions for `eval`, which every worker process knows without importing this file."""

from __future__ import annotations

import os
from typing import Any

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.runs import workers
from warp_unlearning.runs.cores import Share, use_threads


class RecordingPool:
    """Stands in for a process pool: says what it was made with, works in this process."""

    made: list[tuple[Any, ...]]

    def __init__(self, count: int, context: Any, *, initializer: Any, initargs: tuple[Any, ...]) -> None:
        type(self).made.append((count, context.get_start_method(), initializer, initargs))

    def __enter__(self) -> RecordingPool:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def map(self, work: Any, jobs: Any) -> Any:
        return map(work, jobs)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(RecordingPool, "made", [], raising=False)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", RecordingPool)
    return RecordingPool.made


def test_two_real_processes_have_their_share_of_threads_and_results_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 4)
    # The first job is the slowest, so that results come back out of order.
    jobs = [
        f"(__import__('time').sleep({pause}), {i}, __import__('os').getpid(), __import__('torch').get_num_threads())"
        for i, pause in enumerate([1.0, 0.0, 0.0])
    ]
    results = workers.run_all(eval, jobs, workers=2)
    assert [i for _, i, _, _ in results] == [0, 1, 2]
    assert [threads for *_, threads in results] == [2, 2, 2]
    pids = {pid for _, _, pid, _ in results}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.parametrize("count", [1, 2])
def test_the_error_of_a_job_is_raised_here(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    error = "__import__('warp_unlearning.errors', fromlist=['x']).InputError('the lamp is out')"
    jobs = ["1", f"(_ for _ in ()).throw({error})"]
    with pytest.raises(InputError, match="the lamp is out"):
        workers.run_all(eval, jobs, workers=count)


def test_the_pool_is_made_of_the_share_of_cores(monkeypatch: pytest.MonkeyPatch, made: list[tuple[Any, ...]]) -> None:
    asked: list[tuple[Any, ...]] = []

    def share(jobs: int, *, cores: int, workers: int | None) -> Share:
        asked.append((jobs, cores, workers))
        return Share(3, 5)

    monkeypatch.setattr(workers, "share_cores", share)
    monkeypatch.setattr(workers, "available_cores", lambda: 16)
    assert workers.run_all(abs, [-1, -2, -3, -4], workers=3) == [1, 2, 3, 4]
    assert asked == [(4, 16, 3)]
    assert made == [(3, "spawn", use_threads, (5,))]


@pytest.mark.parametrize(("cores", "jobs"), [(2, 5), (8, 3), (3, 2), (64, 7)])
def test_processes_times_threads_stay_within_the_cores(
    monkeypatch: pytest.MonkeyPatch, made: list[tuple[Any, ...]], cores: int, jobs: int
) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: cores)
    workers.run_all(abs, range(jobs))
    ((count, _, _, (threads,)),) = made
    assert count == min(cores, jobs)
    assert count * threads <= cores < count * (threads + 1)


def test_one_job_or_one_core_needs_no_process(monkeypatch: pytest.MonkeyPatch, made: list[tuple[Any, ...]]) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 1)
    assert workers.run_all(eval, ["__import__('os').getpid()"] * 2) == [os.getpid()] * 2
    monkeypatch.setattr(workers, "available_cores", lambda: 8)
    assert workers.run_all(eval, ["__import__('os').getpid()"]) == [os.getpid()]
    assert workers.run_all(abs, []) == []
    assert made == []


def test_more_workers_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    with pytest.raises(InputError, match="3 workers were asked for on 2 cores"):
        workers.run_all(abs, [1, 2, 3], workers=3)
