"""Which engine a command runs its jobs on."""

from __future__ import annotations

from dataclasses import dataclass

from ..runs.cores import available_cores
from ..runs.engine import Engine
from ..runs.local_engine import LocalEngine


@dataclass(frozen=True)
class ChosenEngine:
    """An engine, and how many jobs it does at once; None where a cluster decides that."""

    engine: Engine
    workers: int | None


def choose_engine(*, workers: int | None, ray: str | None, device: str) -> ChosenEngine:
    """Processes on this machine, one a core or one for a GPU, or the nodes of a Ray cluster."""
    if ray is not None:
        # Ray is an extra, and slow to import.
        from ..runs.ray_engine import RayEngine

        gpus = 1.0 if device.startswith("cuda") else 0.0
        return ChosenEngine(RayEngine(address=ray, gpus=gpus), None)
    count = workers or (1 if device.startswith("cuda") else available_cores())
    return ChosenEngine(LocalEngine(workers=count), count)
