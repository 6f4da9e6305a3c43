"""Progress of a run read from its store, as lines, bars, JSON lines and in results."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from warp_unlearning.runs.drain import Outcome
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.progress import Event, Progress, in_words, planned_text, stages_of
from warp_unlearning.runs.store import Failure, Store
from warp_unlearning.workflows.run_account import jobs_account, machine_account

KEYS = [Key("train", 1, {"n": n}) for n in range(20)]
AFTER = Key("score", 1, {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def jobs() -> list[Job]:
    return [*(Job(key) for key in KEYS), Job(AFTER, (KEYS[0],))]


def write(store: Store, *keys: Key, seconds: float = 8.0) -> None:
    for key in keys:
        store.write(key, {}, seconds=seconds)


def test_a_line_at_every_tenth_with_the_time_left(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(jobs(), store, "auto", workers=2) as progress:
        for key in KEYS:
            write(store, key)
            progress({})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "train: 2 of 20, 1 min 12 s left"
    assert lines[-1] == "train: 20 of 20"


def test_what_was_there_and_what_fails_is_told_and_a_damaged_result_counts_no_more(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Event] = []
    write(store, KEYS[1], KEYS[2])
    with Progress(jobs(), store, "lines", tell=told.append) as progress:
        progress({KEYS[0].digest: Failure("no memory", "Traceback")})
        store.remove(KEYS[1].digest)
        progress({})
        write(store, KEYS[1], seconds=1.0)
        progress({})
    assert [(event.what, event.key) for event in told] == [
        ("found", KEYS[1]),
        ("found", KEYS[2]),
        ("failed", KEYS[0]),
        ("blocked", AFTER),
        ("finished", KEYS[1]),
    ]
    assert (told[2].traceback, told[4].seconds) == ("Traceback", 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert f"failed: {KEYS[0]}: no memory" in lines
    assert "score: 1 of 1, 1 failed" in lines


def test_machines_get_json_lines_or_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for style in ("json", "none"):
        with Progress(jobs(), store, style) as progress:
            write(store, KEYS[0], seconds=1.0)
            progress({KEYS[1].digest: Failure("x")})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["what"], line["kind"]) for line in lines] == [("finished", "train"), ("failed", "train")]
    assert (lines[0]["seconds"], lines[0]["key"], lines[1]["reason"]) == (1.0, KEYS[0].digest, "x")


def test_bars_leave_the_terminal_in_order(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(jobs(), store, "bars") as progress:
        progress({KEYS[0].digest: Failure("[red]x")})
    assert "[red]x" in capsys.readouterr().err


def test_a_plan_is_told_by_stages_to_readers_alone(store: Store) -> None:
    write(store, KEYS[0])
    assert planned_text(jobs(), store) == "planned: 20 train, 1 score; 1 are there already"
    styles = ("auto", "bars", "lines", "json", "none")
    assert [in_words(style) for style in styles] == [True, True, True, False, False]


def test_results_say_how_jobs_ended_by_stage_and_failures_in_words(store: Store) -> None:
    write(store, KEYS[1], seconds=2.0)
    write(store, KEYS[2], seconds=3.0)
    ended = Outcome((KEYS[1],), (KEYS[2],), {KEYS[0]: "why"}, (AFTER,), tuple(KEYS[3:]))
    account = jobs_account(ended, stages_of(jobs(), store, ended), told=lambda key: f"a {key.kind}")
    assert account["stages"] == [
        {"name": "train", "jobs": 20, "done": 2, "failed": 1, "seconds": 2.0},
        {"name": "score", "jobs": 1, "done": 0, "failed": 1, "seconds": 0.0},
    ]
    assert account["failures"] == [
        {"job": "a train", "reason": "why"},
        {"job": "a score", "reason": "something it needs failed"},
    ]
    assert stages_of(jobs(), store, ended, found=True)[0]["seconds"] == 5.0


def test_the_machine_is_this_one() -> None:
    found = machine_account("CPU")
    assert list(found) == ["processor", "cores", "device"]
    assert (found["cores"], found["device"]) == (os.cpu_count(), "CPU")
    assert found["processor"]
