"""Do worker processes fight over cores? `python benchmarks/core_sharing.py`.

Times a training step in one process alone, then in as many processes as there are cores, once with a thread each, as
the package has them, once with as many threads each as there are cores. Prints both as ratios to the process alone, in
one run.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter

import torch

from warp_unlearning.conformance.problem import digits_problem
from warp_unlearning.randomness import Streams
from warp_unlearning.runs.local import available_cores
from warp_unlearning.training.training import Recipe, Training

STEPS = 60


def step_seconds(threads: int) -> float:
    torch.set_num_threads(threads)
    problem = digits_problem(0, epochs=1)
    training = Training(problem.original, problem.retain, recipe=Recipe(epochs=20), streams=Streams(0))
    updates = training.updates()
    for _ in range(10):
        next(updates)
    began = perf_counter()
    for _ in range(STEPS):
        next(updates)
    return (perf_counter() - began) / STEPS


def side_by_side(workers: int, threads: int) -> float:
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return max(pool.map(step_seconds, [threads] * workers))


def main() -> None:
    cores = available_cores()
    alone = side_by_side(1, 1)
    shared = side_by_side(cores, 1)
    fighting = side_by_side(cores, cores)
    print(f"{cores} cores; a step alone on one thread is 1")
    print(f"{cores} processes x 1 thread, as the package sets it: {shared / alone:.2f}")
    print(f"{cores} processes x {cores} threads, torch's default: {fighting / alone:.2f}")


if __name__ == "__main__":
    main()
