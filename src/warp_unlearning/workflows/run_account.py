"""What results say of the run that made them: how its jobs ended, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

from ..runs.engine import Outcome
from ..runs.keys import Key
from ..runs.tally import Tally


def jobs_account(outcome: Outcome, tally: Tally, *, told: Callable[[Key], str]) -> dict[str, Any]:
    """Stages with their jobs and seconds, and the jobs that failed, `told` in words, with the reason."""
    failures = {**outcome.failed, **dict.fromkeys(outcome.blocked, "something it needs failed")}
    return {
        "stages": [stage.as_json() for stage in tally.stages.values()],
        "failures": [{"job": told(key), "reason": why} for key, why in failures.items()],
    }


def machine_account(device: str) -> dict[str, Any]:
    """Processor and cores of this machine, and what models were made on."""
    return {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count() or 0, "device": device}
