"""Secret numbers that the defences of a shadow audit draw from, kept in the private part of its run."""

from __future__ import annotations

import json
import secrets

from ..data.atomic import write_atomically
from ..errors import DataError
from ..randomness import Streams
from ..runs.directory import RunDirectory
from ..studies.shadow_plan import Task, unlearnings
from ..studies.shadow_settings import ShadowSettings
from .shared_run import run_lock

SEEDS = "private/defense_seeds.json"


def defense_seeds(run: RunDirectory, settings: ShadowSettings, fixed: int | None) -> dict[Task, int]:
    """One secret number for each unlearning, drawn when the run is planned for the first time and kept in its private
    part: whoever can draw a defence's moves again can undo them. From `fixed` where an experiment is to be repeated.
    """
    tasks = list(unlearnings(settings))
    if fixed is not None:
        return {task: Streams(fixed, "defense").number(str(task)) for task in tasks}
    file = run.path / SEEDS
    with run_lock(run):
        if not file.is_file():
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(file, json.dumps([secrets.randbits(63) for _ in tasks]).encode())
    try:
        seeds = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); the audit cannot go on without it: begin a new run"
        ) from error
    if not isinstance(seeds, list) or len(seeds) != len(tasks):
        raise DataError(f"{file} does not hold {len(tasks)} numbers; it is damaged: begin a new run")
    return dict(zip(tasks, map(int, seeds), strict=True))
