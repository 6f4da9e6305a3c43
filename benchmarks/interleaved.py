"""Versions of some work, timed in turn, each in a process of its own.

`measure` starts a process for each version, has them work one after the other (who goes first alternates), and returns
what every run took. On one thread of a CPU, time is the processor's. Memory is the peak of the process on a CPU and of
what is allocated on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch

Work = Callable[[], object]
Prepare = Callable[[argparse.Namespace, str], Work]
Run = dict[str, float]

HERE = Path(__file__).resolve().parent.parent / "src"


def timed(work: Work, device: torch.device) -> Run:
    """Seconds and GiB of one run; where `work` returns a number of models, seconds a model."""
    on_gpu = device.type == "cuda"
    clock = perf_counter if on_gpu or torch.get_num_threads() > 1 else process_time
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = clock()
    models = work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = (clock() - began) / (models if isinstance(models, int) else 1)
    peak = torch.cuda.max_memory_allocated() if on_gpu else _peak_of_process()
    return {"seconds": seconds, "GiB": peak / 2**30}


def _peak_of_process() -> int:
    # Unlike ru_maxrss, this does not start at the peak of the parent.
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def _serve(source: Path, prepare: Prepare, options: argparse.Namespace, pipe: Connection) -> None:
    sys.path.insert(0, str(source.resolve()))
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    prepared = cache(lambda work: prepare(options, work))
    while work := pipe.recv():
        pipe.send(timed(prepared(work), torch.device(options.device)))


def measure(
    works: Mapping[str, tuple[Path, str]], prepare: Prepare, options: argparse.Namespace
) -> dict[str, list[Run]]:
    """What each version took in each of `options.runs` runs, after `options.warm_up` that do not count.

    `works` holds, by version, the folder whose package does the work, and what `prepare` in that process is given.
    """
    context, pipes = get_context("spawn"), dict[str, Connection]()
    for version, (source, _) in works.items():
        pipes[version], theirs = context.Pipe()
        context.Process(target=_serve, args=(source, prepare, options, theirs), daemon=True).start()
        theirs.close()
    taken: dict[str, list[Run]] = {version: [] for version in works}
    for i in range(-options.warm_up, options.runs):
        for version in list(works)[:: 1 if i % 2 == 0 else -1]:
            pipes[version].send(works[version][1])
            outcome = pipes[version].recv()
            taken[version] += [outcome] if i >= 0 else []
    for pipe in pipes.values():
        pipe.send(None)
    return taken


def show(work: str, taken: Mapping[str, list[Run]]) -> None:
    """Print medians, and the median of ratios of neighbouring runs (smallest to largest) of the first version."""
    first = next(iter(taken))
    for version, runs in taken.items():
        line = f"{work}, {version}: {median(run['seconds'] for run in runs):.4g} s, {runs[-1]['GiB']:.2f} GiB"
        if version != first:
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(taken[first], runs, strict=True)]
            line += f"; {first} takes {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of the time"
            line += f", {taken[first][-1]['GiB'] / runs[-1]['GiB']:.2f} of the memory"
        print(line, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that every script with `measure` has."""
    parser.add_argument("--beside", type=Path, help="the folder `src` of another checkout")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON with all runs")
