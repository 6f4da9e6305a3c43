"""Events of a run as TensorBoard scalars."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.progress import Event
from warp_unlearning.workflows.tracking import tracked

KEY = Key("train", 1, {})


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tracked(None) as note:
        assert note is None
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"install warp-unlearning\[track\]"), tracked(tmp_path):
        pass


def test_seconds_and_counts_by_kind(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracked(tmp_path) as note:
        assert note is not None
        for seconds in (1.0, 2.0):
            note(Event("finished", KEY, 1.0, seconds))
        note(Event("failed", KEY, 1.0, reason="x"))
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [event.value for event in found.Scalars("train/seconds")] == [1.0, 2.0]
    assert [event.value for event in found.Scalars("train/failed")] == [1.0]
