"""What results say of the run that made them: how its jobs ended, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runs.drain import Outcome
from ..runs.keys import Key


def jobs_account(
    outcome: Outcome, stages: Sequence[Mapping[str, Any]], *, told: Callable[[Key], str]
) -> dict[str, Any]:
    """Stages with their jobs and seconds, and the jobs that failed, `told` in words, with the reason."""
    failures = {**outcome.failed, **dict.fromkeys(outcome.blocked, "something it needs failed")}
    return {
        "stages": list(stages),
        "failures": [{"job": told(key), "reason": why} for key, why in failures.items()],
    }


def machine_account(device: str) -> dict[str, Any]:
    """Processor and cores of this machine, and what models were made on."""
    return {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count() or 0, "device": device}
