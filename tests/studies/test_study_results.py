"""What a study's results say of teleports."""

from __future__ import annotations

from typing import Any

import pytest

from warp_unlearning.studies.study_results import _teleports


def summary(*moved: float, taken_back: int = 0) -> dict[str, Any]:
    energies = [2.0 for _ in moved]
    told = {"count": len(moved), "taken_back": taken_back, "moved": list(moved)}
    return {"teleports": {**told, "energy_before": energies, "energy_after": energies}}


def test_teleports_that_moved_nothing_are_told_from_those_that_did() -> None:
    found = _teleports([summary(0.0, 0.0, 0.3), summary(0.1)])
    assert found is not None
    assert found["unmoved"] == pytest.approx(0.5)
    assert found["taken_back"] == 0
    alone = _teleports([summary(0.0, 0.0, 0.0)])
    assert alone is not None
    assert alone["unmoved"] == 1
    back = _teleports([summary(0.0, 0.2, taken_back=1)])
    assert back is not None
    assert (back["unmoved"], back["taken_back"]) == (0.5, 0.5)
    assert _teleports([{"teleports": {"count": 0}}, {}]) is None
