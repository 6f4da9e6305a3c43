"""Which engine a command runs its jobs on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from ..errors import InputError
from ..runs.drain import Engine
from ..runs.local import Lanes, available_cores, run_here, run_local

if TYPE_CHECKING:
    from ..gpu.lanes import Lane


@dataclass(frozen=True)
class ChosenEngine:
    """An engine, and how many jobs it does at once; None where a cluster decides that."""

    engine: Engine
    workers: int | None


LANES = 8
"""Models side by side on one GPU."""
MOST_LANES = 16
"""Torch gives out 32 streams before it gives the first again, and decompositions and captures need some too."""


LANES_OF_A_PROCESS = 2
"""The same where several processes share the GPU."""
_DEATHS = 3
_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True)
class GpuLane:
    """Makes lanes of a GPU, in whichever process it is called, which may have such a share of its memory."""

    device: str
    memory: float = 1.0

    def __call__(self) -> Lane:
        """A lane, whose thread sleeps while it waits."""
        import torch

        from ..gpu.lanes import Lane, sleep_while_waiting

        place = torch.device(self.device)
        sleep_while_waiting(place.index or 0)
        if place.type == "cuda" and self.memory < 1:
            torch.cuda.set_per_process_memory_fraction(self.memory, place.index or 0)
        return Lane(place)


def choose_study_engine(
    device: str, *, at_once: int | None, processes: int | None = None, alone: bool = False
) -> ChosenEngine:
    """Lanes of a GPU in this process or in so many others, or processes of one thread on the CPU; one at a time where
    jobs are `alone`.
    """
    if processes is not None and not device.startswith("cuda"):
        raise InputError(
            f"{processes} processes that share a GPU, and the device is {device}: a CPU's jobs have a process each; "
            "leave --processes out"
        )
    if processes is not None and processes < 1:
        raise InputError(f"{processes} processes that share a GPU; give 1 or more")
    if at_once is not None and at_once > MOST_LANES and device.startswith("cuda"):
        raise InputError(f"{at_once} models at once in a process; a GPU has streams for {MOST_LANES}: give fewer")
    if processes is not None and alone:
        raise InputError(f"{processes} processes, for a study that times its jobs one at a time; leave them out")
    if processes is not None:
        return _sharing_a_gpu(device, processes, LANES_OF_A_PROCESS if at_once is None else at_once)
    if device.startswith("cuda"):
        # Not needed, and slow to import, on machines without a GPU.
        import torch

        from ..gpu.lanes import Lane, sleep_while_waiting

        count = 1 if alone else at_once or LANES
        place = torch.device(device)
        if count > 1:
            sleep_while_waiting(place.index or 0)
        # The same lanes whenever the engine is used: memory is kept for each.
        lanes = cycle([Lane(place) for _ in range(count)])
        return ChosenEngine(partial(run_here, lanes=Lanes(count, lambda: next(lanes))), count)
    count = 1 if alone else at_once or available_cores()
    return ChosenEngine(partial(run_local, workers=count), count)


def _sharing_a_gpu(device: str, processes: int, lanes: int) -> ChosenEngine:
    # Under MPS a process that may use the whole GPU keeps it to itself at every step of an eigendecomposition. The
    # variable means nothing elsewhere.
    share = os.environ.get(_SHARE, str(max(1, min(100, 250 // processes))))
    # Few need much at the same moment, and nobody is to take all.
    lane = GpuLane(device, min(1.0, 2 / processes))
    engine = partial(
        run_local, workers=processes, retries=_DEATHS, lanes=Lanes(lanes, lane), environment={_SHARE: share}
    )
    return ChosenEngine(engine, processes * lanes)


def choose_engine(*, workers: int | None, ray: str | None, device: str) -> ChosenEngine:
    """Processes on this machine, one a core or one for a GPU, or the nodes of a Ray cluster."""
    if ray is not None:
        # Ray is an extra, and slow to import.
        from ..runs.ray import run_ray

        gpus = 1.0 if device.startswith("cuda") else 0.0
        return ChosenEngine(partial(run_ray, address=ray, gpus=gpus), None)
    count = workers or (1 if device.startswith("cuda") else available_cores())
    return ChosenEngine(partial(run_local, workers=count), count)
