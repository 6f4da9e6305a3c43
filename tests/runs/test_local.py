"""Processes of this machine: those that die, their parent, interrupts, threads, cores."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from trial_work import Trial, Unloadable, environment, expected, layered, no_lane, results, sound, threads

from warp_unlearning.errors import InputError
from warp_unlearning.runs import local
from warp_unlearning.runs.drain import EngineError
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local import Lanes, available_cores, run_all, run_here, run_local, use_threads
from warp_unlearning.runs.store import Store

# A parent that runs jobs; argv: store, marks, sleep of each job.
PARENT = """
import sys
from pathlib import Path
from trial_work import Trial, layered
from warp_unlearning.runs.local import run_local
from warp_unlearning.runs.store import Store

if __name__ == "__main__":
    store, marks, sleep = sys.argv[1:]
    jobs = layered(4, sleep=float(sleep))
    outcome = run_local(jobs, Trial(Path(marks)), Store(Path(store)), workers=2)
    print(len(outcome.done), len(outcome.found))
"""
HEARING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    (tmp_path / "marks").mkdir()
    return Trial(tmp_path / "marks")


def parent(store: Store, trial: Trial, *, sleep: float, guard: bool = True) -> subprocess.Popen[str]:
    program = store.root.parent / "parent.py"
    program.write_text(PARENT if guard else PARENT.replace('if __name__ == "__main__":', "if True:"))
    command = [sys.executable, str(program), str(store.root), str(trial.marks), str(sleep)]
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen(
        # Where the tests run in the background interrupts are ignored, and whatever is started inherits that.
        [sys.executable, "-c", HEARING, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | path,
    )


def all_gone(pids: set[int], *, within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie has ended; whoever adopted it has not yet asked.
    return state != "Z"


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_job_whose_process_dies_is_done_again_and_then_fails(store: Store, trial: Trial, lanes: int) -> None:
    dies, once, leaves = (Key("k", 1, {"does": what}) for what in ("die", "die once", "leave"))
    rest = [Job(Key("k", 1, {"i": i, "sleep": 0.05})) for i in range(6)]
    jobs = [Job(dies), Job(once), Job(leaves), *rest]
    outcome = run_local(jobs, trial, store, workers=2, lanes=Lanes(lanes))
    reason = "its process died 2 times, perhaps for want of memory"
    assert outcome.failed == {dies: reason, leaves: reason}
    assert set(outcome.done) == {once, *(job.key for job in rest)}
    assert (trial.begun(dies), trial.begun(leaves)) == (2, 2)
    assert all_gone(trial.processes())
    assert not list((store.root / "claims").glob("*.starts"))


def test_each_worker_has_its_threads_and_leaves_interrupts_to_the_parent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    key = Key("k", 1, {})
    assert run_local([Job(key)], threads, store, workers=1).complete
    assert store.read(key).read("threads.txt") == b"1 1 True"
    assert dict(os.environ) == before


def test_workers_have_their_environment(store: Store) -> None:
    key = Key("k", 1, {})
    assert run_local([Job(key)], environment, store, workers=1, environment={"TRIAL": "seven"}).complete
    assert store.read(key).read("result.bin") == b"seven"


def test_work_and_lanes_that_cannot_travel_are_refused(store: Store) -> None:
    jobs = [Job(Key("k", 1, {}))]
    with pytest.raises(InputError, match="cannot be sent to another process"):
        run_local(jobs, lambda job, store: iter(()), store)  # type: ignore[arg-type, return-value]
    with pytest.raises(EngineError, match="made in another process"):
        run_local(jobs, Unloadable(), store)
    with pytest.raises(EngineError, match="a worker process has nowhere to work: OSError: no driver"):
        run_local(jobs, threads, store, lanes=Lanes(1, no_lane))
    assert pickle.loads(pickle.dumps(Lanes(2))) == Lanes(2)


def test_a_script_without_a_guard_is_told_what_it_needs(store: Store, trial: Trial) -> None:
    process = parent(store, trial, sleep=0.0, guard=False)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "worker processes in a row ended before they could start" in errors.splitlines()[-1]
    assert "__main__" in errors.splitlines()[-1]


def test_an_interrupt_stops_it_and_keeps_what_is_finished(store: Store, trial: Trial) -> None:
    process = parent(store, trial, sleep=0.3)
    while not store.digests():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode in (1, -signal.SIGINT, 130)
    assert errors.strip().endswith("KeyboardInterrupt")
    assert all_gone(trial.processes())
    assert 1 <= len(store.digests()) < 13
    assert not sound(store)
    jobs = layered(4, sleep=0.3)
    assert run_local(jobs, trial, store, workers=2).complete
    assert results(store, jobs) == expected(jobs)


def test_a_parent_that_is_killed_leaves_no_worker_running(store: Store, trial: Trial) -> None:
    process = parent(store, trial, sleep=60.0)
    try:
        while len(trial.processes()) < 2:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert all_gone(trial.processes())


def test_two_parents_on_one_store_share_the_jobs(store: Store, trial: Trial) -> None:
    both = [parent(store, trial, sleep=0.1) for _ in range(2)]
    told = [process.communicate(timeout=60)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    jobs = layered(4, sleep=0.1)
    assert results(store, jobs) == expected(jobs)
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert all(sum(map(int, words)) == 13 for words in told)


def test_no_jobs_need_no_process(store: Store, trial: Trial) -> None:
    assert run_local([], trial, store).complete
    assert not store.root.exists()


@pytest.mark.slow
def test_of_a_finished_plan_it_is_soon_known(store: Store, trial: Trial) -> None:
    jobs = [Job(Key("cell", 1, {"i": i})) for i in range(2336)]
    for job in jobs:
        store.write(job.key, {"result.bin": b"x"})
    began = time.monotonic()
    assert len(run_local(jobs, trial, store, workers=2).found) == 2336
    assert time.monotonic() - began < 3
    assert not trial.processes()


def test_what_the_watcher_raises_ends_the_workers(store: Store, trial: Trial) -> None:
    before = set(multiprocessing.active_children())

    def broken(failures: object) -> None:
        if trial.processes():
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        run_local(layered(2, sleep=30.0), trial, store, workers=2, watch=broken)
    assert all_gone(trial.processes())
    assert set(multiprocessing.active_children()) == before


def test_numbers_that_make_no_sense_are_refused(store: Store, trial: Trial) -> None:
    for options in ({"workers": 0}, {"threads": 0}, {"retries": -1}):
        with pytest.raises(InputError, match="or more"):
            run_local([], trial, store, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="0 lanes in a process"):
        run_here([], trial, store, lanes=Lanes(0))


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("", 8),
        ("200000", 8),
        ("x y", 8),
        ("1 0", 8),
        ("1 2 3", 8),
    ],
)
def test_a_container_quota_lowers_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    file = tmp_path / "cpu.max"
    file.write_text(content)
    assert available_cores(file) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 7}, raising=False)
    assert available_cores(tmp_path / "none") == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores(tmp_path / "none") == 6


def test_torch_takes_the_threads_it_is_given() -> None:
    before = torch.get_num_threads()
    try:
        for count in (2, 1):
            use_threads(count)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def test_items_are_worked_on_in_processes_with_their_share_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are expressions for `eval`, which every process knows without importing this file."""
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    # The first is the slowest, so that results come back out of order.
    items = [
        f"(__import__('time').sleep({pause}), {i}, __import__('os').getpid(), __import__('torch').get_num_threads())"
        for i, pause in enumerate([1.0, 0.0, 0.0])
    ]
    found = run_all(eval, items, workers=2)
    assert [i for _, i, _, _ in found] == [0, 1, 2]
    assert [count for *_, count in found] == [2, 2, 2]
    pids = {pid for _, _, pid, _ in found}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert run_all(eval, ["__import__('os').getpid()"]) == [os.getpid()]
    assert run_all(abs, []) == []
    with pytest.raises(InputError, match="5 workers were asked for on 4 cores"):
        run_all(abs, [1, 2, 3], workers=5)


@pytest.mark.parametrize("count", [1, 2])
def test_the_error_of_an_item_is_raised_here(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: 2)
    error = "__import__('warp_unlearning.errors', fromlist=['x']).InputError('the lamp is out')"
    with pytest.raises(InputError, match="the lamp is out"):
        partial(run_all, eval, ["1", f"(_ for _ in ()).throw({error})"])(workers=count)
