"""How many cores there are for this process, and how processes and torch's threads share them.

Threads of two processes that wait for each other on the same cores can make a step a hundred times slower, so the
product of workers and threads never exceeds the cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Share:
    """So many worker processes, each with so many torch threads."""

    workers: int
    threads: int


def available_cores(quota: Path = _QUOTA) -> int:
    """Cores this process may use: its affinity, and less where a container's quota allows less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
        if limit != "max":
            cores = min(cores, max(1, int(limit) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
    return cores


def share_cores(jobs: int, *, cores: int, workers: int | None = None) -> Share:
    """Workers for `jobs` independent jobs: as many as there are jobs or cores, and the cores divided among them.

    >>> share_cores(10, cores=2)
    Share(workers=2, threads=1)
    >>> share_cores(1, cores=8)
    Share(workers=1, threads=8)
    """
    if workers is not None and not 1 <= workers <= cores:
        raise InputError(f"{workers} workers were asked for on {cores} cores; give 1 to {cores}")
    count = min(jobs, workers or cores) or 1
    return Share(count, cores // count)


def use_threads(threads: int) -> None:
    """Let torch compute with so many threads in this process."""
    import torch

    torch.set_num_threads(threads)


def be_patient() -> None:
    """Have idle threads sleep instead of spin. Works only before torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
