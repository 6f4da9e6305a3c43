"""Versions of some work, timed in turn, each in a process of its own.

`workers` starts the processes; `measure` has them work one after the other (who goes first alternates) and returns what
every run took. On one thread of a CPU, time is the processor's. Memory is the peak of the process on a CPU and of
what is allocated on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

Work = Callable[[], object]
Prepare = Callable[[argparse.Namespace, str], Work]
Run = dict[str, float]

HERE = Path(__file__).resolve().parent.parent / "src"


def known(*places: str) -> Any:
    """The first of these names, as "module:name", that the version has: some have moved."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(import_module(f"warp_unlearning.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"none of {', '.join(places)}")


def timed(work: Work, device: torch.device) -> Run:
    """Seconds and GiB of one run; where `work` returns a float, these are the seconds."""
    on_gpu = device.type == "cuda"
    clock = perf_counter if on_gpu or torch.get_num_threads() > 1 else process_time
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = clock()
    found = work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = found if isinstance(found, float) else clock() - began
    peak = torch.cuda.max_memory_allocated() if on_gpu else _peak_of_process()
    return {"seconds": seconds, "GiB": peak / 2**30}


def _peak_of_process() -> int:
    # Unlike ru_maxrss, this does not start at the peak of the parent.
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def _serve(source: Path, prepare: Prepare, options: argparse.Namespace, pipe: Connection) -> None:
    sys.path.insert(0, str(source.resolve()))
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    prepared = lru_cache(maxsize=1)(lambda work: prepare(options, work))
    while work := pipe.recv():
        pipe.send(timed(prepared(work), torch.device(options.device)))


@contextmanager
def workers(
    sources: Mapping[str, Path], prepare: Prepare, options: argparse.Namespace
) -> Iterator[dict[str, Connection]]:
    """A process for each version, which does the work that `prepare` makes there with the package in its folder."""
    context, pipes = get_context("spawn"), dict[str, Connection]()
    for version, source in sources.items():
        pipes[version], theirs = context.Pipe()
        context.Process(target=_serve, args=(source, prepare, options, theirs), daemon=True).start()
        theirs.close()
    yield pipes
    for pipe in pipes.values():
        pipe.send(None)


def measure(
    pipes: Mapping[str, Connection], works: Mapping[str, str], options: argparse.Namespace
) -> dict[str, list[Run]]:
    """What each version's work took in each of `options.runs` runs, after `options.warm_up` that do not count."""
    taken: dict[str, list[Run]] = {version: [] for version in works}
    for i in range(-options.warm_up, options.runs):
        for version in list(works)[:: 1 if i % 2 == 0 else -1]:
            pipes[version].send(works[version])
            outcome = pipes[version].recv()
            taken[version] += [outcome] if i >= 0 else []
    return taken


def show(work: str, taken: Mapping[str, list[Run]]) -> str:
    """Print and return medians, and ratios of the first version to others in neighbouring runs."""
    first, lines = next(iter(taken)), []
    for version, runs in taken.items():
        line = f"{work}, {version}: {median(run['seconds'] for run in runs):.4g} s, {runs[-1]['GiB']:.2f} GiB"
        if version != first:
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(taken[first], runs, strict=True)]
            line += f"; {first} takes {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of the time"
            line += f", {taken[first][-1]['GiB'] / runs[-1]['GiB']:.2f} of the memory"
        print(line, flush=True)
        lines.append(line)
    return "\n".join(lines)


def sources(options: argparse.Namespace) -> dict[str, Path]:
    """The folders of this version and, with `--beside`, of another."""
    return {"new": HERE} | ({"other": options.beside} if options.beside else {})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that every script with `measure` has."""
    parser.add_argument("--beside", type=Path, help="the folder `src` of another checkout")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON with all runs")
