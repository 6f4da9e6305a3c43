from __future__ import annotations

import os

from warp_unlearning.runs.engine import Outcome
from warp_unlearning.runs.events import Event
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.tally import Tally
from warp_unlearning.workflows.run_account import jobs_account, machine_account

DONE, FAILED, BLOCKED = (Key(kind, 1, {}) for kind in ("train", "unlearn", "score"))


def test_jobs_are_told_by_stage_and_failures_in_words() -> None:
    tally = Tally([Job(key) for key in (DONE, FAILED, BLOCKED)])
    events = (Event("finished", DONE, seconds=2.0), Event("failed", FAILED, reason="why"), Event("blocked", BLOCKED))
    for event in events:
        tally.note(event)
    account = jobs_account(Outcome((DONE,), (), {FAILED: "why"}, (BLOCKED,)), tally, told=lambda key: f"a {key.kind}")
    assert list(account) == ["stages", "failures"]
    assert account["stages"] == [
        {"name": "train", "jobs": 1, "done": 1, "failed": 0, "seconds": 2.0},
        {"name": "unlearn", "jobs": 1, "done": 0, "failed": 1, "seconds": 0.0},
        {"name": "score", "jobs": 1, "done": 0, "failed": 1, "seconds": 0.0},
    ]
    assert account["failures"] == [
        {"job": "a unlearn", "reason": "why"},
        {"job": "a score", "reason": "something it needs failed"},
    ]


def test_the_machine_is_this_one() -> None:
    found = machine_account("CPU")
    assert list(found) == ["processor", "cores", "device"]
    assert (found["cores"], found["device"]) == (os.cpu_count(), "CPU")
    assert found["processor"]
