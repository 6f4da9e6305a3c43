"""What the local engine and its store cost, and how two workers scale: `python benchmarks/run_engine.py`.

1. 500 jobs of 20 ms: time of one worker beyond the work itself, a job. Start of the worker is told apart.
2. 500 jobs planned and found finished: time a job.
3. Jobs of pure Python, about 0.2 s each: one worker against two, three times, with the bookkeeping as a share of it;
   beside it the same work in one and in two bare processes, which is what the machine allows at that moment. On a
   machine that others use, many short repeats (--compute-jobs 12 --repeats 10) and the least of each tell most.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from time import perf_counter, sleep

from warp_unlearning.runs.jobs import Job, Steps, Work, finished
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local import run_local
from warp_unlearning.runs.store import Store


def nap(job: Job, store: Store) -> Steps:
    yield
    sleep(job.key.ingredients["seconds"])
    return {"weights.safetensors": bytes(200_000), "scores.npz": bytes(2_000)}


def compute(job: Job, store: Store) -> Steps:
    yield
    total = 0
    for i in range(job.key.ingredients["rounds"]):
        total = (total * 31 + i) % 1_000_003
    return {"total.txt": str(total).encode()}


def timed(jobs: list[Job], work: Work, *, workers: int, root: Path) -> dict[str, float]:
    """Seconds of the run, of the work in it, and until the first job began."""
    began = perf_counter()
    store = Store(root)
    outcome = run_local(jobs, work, store, workers=workers)
    run = perf_counter() - began
    assert outcome.complete
    done = [(entry.made.timestamp(), entry.seconds or 0.0) for entry in map(store.read, outcome.done)]
    busy = max((end for end, _ in done), default=0.0) - min((end - seconds for end, seconds in done), default=0.0)
    return {"run": run, "work": sum(seconds for _, seconds in done), "busy": busy}


def _processor() -> float:
    """Seconds of processor time of this process and of those it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def rounds_for(seconds: float) -> int:
    rounds = 200_000
    best = min(_once(rounds) for _ in range(5))
    return int(rounds * seconds / best)


def _once(rounds: int) -> float:
    job = Job(Key("compute", 1, {"rounds": rounds}))
    began = perf_counter()
    finished(compute(job, None))  # type: ignore[arg-type]
    return perf_counter() - began


def bookkeeping(folder: Path, count: int) -> None:
    jobs = [Job(Key("nap", 1, {"i": i, "seconds": 0.02})) for i in range(count)]
    before = _processor()
    one = timed(jobs, nap, workers=1, root=folder / "naps")
    processor = (_processor() - before) / count
    each = (one["busy"] - one["work"]) / count
    print(
        f"{count} jobs of 20 ms, one worker: {1e3 * each:.2f} ms of bookkeeping a job (store, claim, messages, events)"
    )
    print(f"  {1e3 * processor:.2f} ms a job of processor time in all, the start of the worker included")
    print(f"  {100 * each / 0.2:.2f} % of jobs of 0.2 s; until the first job began: {one['run'] - one['busy']:.2f} s")
    again = timed(jobs, nap, workers=1, root=folder / "naps")
    print(f"{count} jobs found finished: {1e3 * again['run'] / count:.3f} ms a job")


def compute_alone(rounds: int, count: int) -> float:
    began = perf_counter()
    for _ in range(count):
        _once(rounds)
    return perf_counter() - began


def bare(rounds: int, count: int, workers: int) -> float:
    """Seconds of `count` computations in so many processes that have nothing to do with an engine."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_once, [1000] * workers)
        return max(pool.starmap(compute_alone, [(rounds, count // workers)] * workers))


def scaling(folder: Path, count: int, repeats: int) -> None:
    rounds = rounds_for(0.2)
    seen = []
    for repeat in range(repeats):
        jobs = [Job(Key("compute", 1, {"i": i, "rounds": rounds})) for i in range(count)]
        alone = [bare(rounds, count, n) for n in (1, 2)]
        one, two = (timed(jobs, compute, workers=n, root=folder / f"{repeat}-{n}") for n in (1, 2))
        share = 1 - one["work"] / one["busy"]
        print(
            f"{count} jobs of {one['work'] / count:.3f} s: one worker {one['busy']:.2f} s, two {two['busy']:.2f} s: "
            f"{one['busy'] / two['busy']:.2f} times (with the start of the workers {one['run'] / two['run']:.2f}); "
            f"two bare processes: {alone[0] / alone[1]:.2f} times; bookkeeping {100 * share:.2f} %"
        )
        seen.append((one["busy"], two["busy"], *alone))
    one_, two_, alone_, both = (min(column) for column in zip(*seen, strict=True))
    print(f"least of each: engine {one_ / two_:.2f} times, bare processes {alone_ / both:.2f} times")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=500)
    options.add_argument("--compute-jobs", type=int, default=60)
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    print("load of the machine before:", " ".join(f"{load:.2f}" for load in os.getloadavg()))
    folder = Path(tempfile.mkdtemp(prefix="run-engine-"))
    try:
        bookkeeping(folder, given.jobs)
        scaling(folder, given.compute_jobs, given.repeats)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
