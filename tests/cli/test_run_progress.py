"""Progress of a run of jobs, as lines and as JSON lines."""

from __future__ import annotations

import json

import pytest

from warp_unlearning.cli.run_progress import RunProgress, in_words, planned_text
from warp_unlearning.runs.events import Event
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.tally import Tally

KEYS = [Key("train", 1, {"n": n}) for n in range(20)]


def shown(style: str, capsys: pytest.CaptureFixture[str], *events: Event) -> list[str]:
    with RunProgress(Tally([Job(key) for key in KEYS], workers=2), style) as progress:
        for event in events:
            progress(event)
    found = capsys.readouterr()
    assert found.out == ""
    return found.err.splitlines()


def test_a_line_at_every_tenth_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    events = [Event("finished", key, seconds=8.0) for key in KEYS]
    lines = shown("auto", capsys, *events)
    assert len(lines) == 10
    assert lines[0] == "train: 2 of 20, 1 min 12 s left"
    assert lines[-1] == "train: 20 of 20"


def test_failures_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(
        "lines", capsys, Event("failed", KEYS[0], reason="no memory"), Event("finished", KEYS[1], seconds=1.0)
    )
    assert lines[0] == f"failed: {KEYS[0]}: no memory"
    assert lines[1] == "train: 2 of 20, 1 failed, 9 s left"


def test_machines_get_json_lines_or_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("json", capsys, Event("started", KEYS[0], at=5.0), Event("finished", KEYS[0], at=6.0, seconds=1.0))
    assert [json.loads(line)["what"] for line in lines] == ["started", "finished"]
    assert json.loads(lines[1])["seconds"] == 1.0
    assert shown("none", capsys, Event("failed", KEYS[0], reason="x")) == []


def test_bars_leave_the_terminal_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("bars", capsys, Event("failed", KEYS[0], reason="[red]x"), Event("finished", KEYS[1], seconds=1.0))
    assert any("[red]x" in line for line in lines)


def test_a_plan_is_told_by_stages_to_readers_alone() -> None:
    jobs = [Job(key) for key in (*KEYS[:3], Key("score", 1, {}))]
    assert planned_text(Tally(jobs), 2) == "planned: 3 train, 1 score; 2 are there already"
    assert [in_words(style) for style in ("auto", "bars", "lines", "json", "none")] == [True, True, True, False, False]
