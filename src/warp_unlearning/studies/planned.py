"""A study that is planned: its jobs, how they are done, and what their results come to, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..runs.jobs import Job, Work
from ..runs.keys import Key
from ..runs.store import Store


@dataclass(frozen=True, eq=False)
class Planned:
    """`to_do` gives the jobs that are wanted, those done already included; `told` what a job is, in words; `results`
    the results from what the store holds at that moment, jobs that are missing said to be so. Where `alone` is set,
    jobs are timed and must not run beside others. `said` are notes for the results, `files` belong beside them.
    """

    to_do: Callable[[Store], list[Job]]
    work: Work
    told: Callable[[Key], str]
    results: Callable[[Store], dict[str, Any]]
    alone: bool = False
    said: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
