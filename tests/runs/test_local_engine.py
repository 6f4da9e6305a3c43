from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from trial_work import Trial, Unloadable, bad_name, expected, layered, no_mapping, results, threads

from warp_unlearning.errors import InputError
from warp_unlearning.runs.engine import EngineError, Outcome
from warp_unlearning.runs.events import Event, ignore
from warp_unlearning.runs.jobs import Job, Work
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local_engine import LocalEngine
from warp_unlearning.runs.store import Store, StoreError

# A parent that runs jobs; argv: store, marks, sleep of each job.
PARENT = """
import sys
from pathlib import Path
from trial_work import Trial, layered
from warp_unlearning.runs.local_engine import LocalEngine
from warp_unlearning.runs.store import Store

def tell(event):
    print(event.what, flush=True)

if __name__ == "__main__":
    store, marks, sleep = sys.argv[1:]
    jobs = layered(4, sleep=float(sleep))
    outcome = LocalEngine(workers=2).run(jobs, work=Trial(Path(marks)), store=Store(Path(store)), watch=tell)
    print("finished:", len(outcome.finished), "skipped:", len(outcome.skipped))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    (tmp_path / "marks").mkdir()
    return Trial(tmp_path / "marks")


def run(jobs: list[Job], work: Work, store: Store, *, workers: int = 2) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    return LocalEngine(workers=workers).run(jobs, work=work, store=store, watch=events.append), events


HEARING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"


def parent(store: Store, trial: Trial, *, sleep: float) -> subprocess.Popen[str]:
    program = store.root.parent / "parent.py"
    program.write_text(PARENT)
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


def lines(process: subprocess.Popen[str], until: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == until:
            return
    raise AssertionError(f"{until!r} was never printed")


def all_gone(pids: set[int], *, within: float) -> bool:
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


def test_every_job_is_done_once_in_order_of_need_by_other_processes(store: Store, trial: Trial) -> None:
    jobs = layered(4, sleep=0.01)
    outcome, events = run(jobs, trial, store)
    assert set(outcome.finished) == {job.key for job in jobs}
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert len(trial.processes()) == 2
    assert os.getpid() not in trial.processes()
    assert Counter(event.what for event in events) == {"started": 13, "finished": 13}
    when = {(event.what, event.key): i for i, event in enumerate(events)}
    for job in jobs:
        assert all(when["finished", need] < when["started", job.key] for need in job.needs)
    assert all(event.seconds and event.seconds >= 0.01 for event in events if event.what == "finished")
    assert all(store.read(event.key).seconds == event.seconds for event in events if event.what == "finished")
    again, events = run(jobs, trial, store)
    assert set(again.skipped) == {job.key for job in jobs}
    assert {event.what for event in events} == {"found"}
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert all_gone(trial.processes(), within=5)


def test_failures_stay_with_what_hangs_on_them(store: Store, trial: Trial) -> None:
    good, known, defect, quits, dies, once, leaves = (
        Key("k", 1, {"does": what}) for what in ("good", "raise", "defect", "exit", "die", "die once", "leave")
    )
    after, blocked = Key("k", 1, {"after": "good"}), Key("k", 1, {"after": "defect"})
    jobs = [Job(key) for key in (good, known, defect, quits, dies, once, leaves)]
    outcome, events = run([*jobs, Job(after, (good, once)), Job(blocked, (good, defect))], trial, store)
    assert set(outcome.finished) == {good, once, after}
    assert outcome.failed == {
        known: "the lamp is out",
        defect: "ZeroDivisionError: by nought",
        quits: "SystemExit: enough",
        dies: "its process was ended by SIGKILL, perhaps for want of memory; it was tried 2 times",
        leaves: "its process ended with exit code 7; it was tried 2 times",
    }
    assert outcome.blocked == (blocked,)
    assert (trial.begun(dies), trial.begun(once), trial.begun(known)) == (2, 2, 1)
    assert Counter(event.key for event in events if event.what == "retried") == Counter((dies, once, leaves))
    (told,) = (event for event in events if event.what == "failed" and event.key == defect)
    assert "trial_work.py" in told.traceback
    assert "by nought" in told.traceback


@pytest.mark.parametrize(
    ("work", "words"), [(no_mapping, "NoneType; give a mapping"), (bad_name, "called '../outside'")]
)
def test_work_that_returns_no_files_fails_its_job(store: Store, work: Work, words: str) -> None:
    key = Key("k", 1, {})
    outcome, _ = run([Job(key)], work, store)
    assert words in outcome.failed[key]


def test_a_corrupt_result_is_made_again_and_said_so(store: Store, trial: Trial) -> None:
    jobs = layered(2, sleep=0.0)
    run(jobs, trial, store)
    needed = Key("train", 1, {"seed": 1, "sleep": 0.0})
    for job in jobs:
        if job.key.kind != "train":
            store.remove(job.key.digest)
    file = store.path(needed.digest)
    file.write_bytes(b"x" + file.read_bytes()[1:])
    # Of two workers that need it, the second would only find that it is gone.
    outcome, events = run(jobs, trial, store, workers=1)
    assert outcome.complete
    assert results(store, jobs) == expected(jobs)
    (redone,) = (event for event in events if event.what == "redone")
    assert redone.key == needed
    assert "is not what its checksum says" in redone.reason
    assert needed in outcome.finished
    assert trial.begun(needed) == 2


def test_a_store_that_takes_no_more_ends_the_run_with_one_clear_error(store: Store, trial: Trial) -> None:
    jobs = [Job(Key("k", 1, {"i": 0, "does": "wreck"}), cost=2.0), *(Job(Key("k", 1, {"i": i})) for i in (1, 2))]
    with pytest.raises(StoreError, match="cannot write the entry"):
        run(jobs, trial, store, workers=1)
    assert len(list(trial.marks.iterdir())) == 1


def test_each_worker_has_its_threads_and_leaves_interrupts_to_the_parent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    key = Key("k", 1, {})
    outcome = LocalEngine(workers=1, threads=1).run([Job(key)], work=threads, store=store, watch=ignore)
    assert outcome.complete
    assert store.read(key).read("threads.txt") == b"1 1 True"
    assert dict(os.environ) == before


def test_work_that_cannot_travel_is_refused(store: Store) -> None:
    jobs = [Job(Key("k", 1, {}))]
    with pytest.raises(InputError, match="cannot be sent to another process"):
        run(jobs, lambda job, store: {}, store)
    with pytest.raises(EngineError, match="made in another process"):
        run(jobs, Unloadable(), store)


def test_a_script_without_a_guard_is_told_what_it_needs(tmp_path: Path) -> None:
    program = tmp_path / "bare.py"
    program.write_text(PARENT.replace('if __name__ == "__main__":', "if True:"))
    (tmp_path / "marks").mkdir()
    done = subprocess.run(
        [sys.executable, program, tmp_path / "store", tmp_path / "marks", "0"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        check=False,
    )
    assert done.returncode == 1
    assert "worker processes in a row ended before they could start" in done.stderr.splitlines()[-1]
    assert "__main__" in done.stderr.splitlines()[-1]


def test_what_the_watcher_raises_ends_the_workers(store: Store, trial: Trial) -> None:
    def object_(event: Event) -> None:
        if event.what == "started":
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        LocalEngine(workers=2).run(layered(2, sleep=30.0), work=trial, store=store, watch=object_)
    assert all_gone(trial.processes(), within=5)


def test_an_interrupt_stops_it_and_keeps_what_is_finished(store: Store, trial: Trial) -> None:
    process = parent(store, trial, sleep=0.3)
    lines(process, "finished")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (1, -signal.SIGINT, 130)
    assert err.strip().endswith("KeyboardInterrupt")
    # An interrupt in the middle of handling an error is told with that error, and is one still.
    told_with = err.count("During handling of the above exception, another exception occurred")
    assert err.count("Traceback") - told_with == 1
    assert all_gone(trial.processes(), within=5)
    done = len(store.digests())
    assert 1 <= done < 13
    assert not any(map(store.fault, store.digests()))


def test_a_parent_that_is_killed_leaves_no_worker_running(store: Store, trial: Trial) -> None:
    process = parent(store, trial, sleep=60.0)
    try:
        while len(trial.processes()) < 2:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert all_gone(trial.processes(), within=5)


def test_two_parents_on_one_store_share_the_jobs(store: Store, trial: Trial) -> None:
    both = [parent(store, trial, sleep=0.1) for _ in range(2)]
    told = [process.communicate(timeout=60)[0].splitlines()[-1].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    jobs = layered(4, sleep=0.1)
    assert results(store, jobs) == expected(jobs)
    assert all(trial.begun(job.key) == 1 for job in jobs)
    assert sum(int(words[1]) for words in told) == 13
    assert all(int(words[1]) + int(words[3]) == 13 for words in told)


@pytest.mark.parametrize("options", [{"workers": 0}, {"threads": 0}, {"retries": -1}])
def test_numbers_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="or more"):
        LocalEngine(**options)


def test_no_jobs_need_no_process(store: Store, trial: Trial) -> None:
    outcome, events = run([], trial, store)
    assert outcome.complete
    assert events == []


def test_a_watch_that_fails_ends_the_run_and_its_workers(store: Store, trial: Trial) -> None:
    def broken(event: Event) -> None:
        if event.what == "finished":
            raise BrokenPipeError(32, "Broken pipe")

    before = set(multiprocessing.active_children())
    with pytest.raises(BrokenPipeError):
        LocalEngine(workers=2).run(layered(3, sleep=0.01), work=trial, store=store, watch=broken)
    assert set(multiprocessing.active_children()) == before
