"""What a teleport launches and reads, by the counts of `benchmarks/teleport_operations.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace


@pytest.fixture(scope="module")
def counts() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "teleport_operations.py"
    spec = importlib.util.spec_from_file_location("teleport_operations", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tracked_teleport_reads_little_and_launches_little(counts: Any) -> None:
    """A ResNet-18 has 21 layers that move: any read or any seven launches in each of them would be seen."""
    operations = counts.later_teleport(TrackedNullSpace(), small=True, certify="brief")
    found = operations.counts
    elsewhere = {part for part, _ in found} - {"energies", "on the host"}
    assert {"forward and moments", "bases", "walk", "safeguard", "certificate"} <= elsewhere
    assert sum(found[part, "reads"] for part in elsewhere) <= 5
    assert sum(found[part, "operations"] for part in elsewhere) <= 1500
    assert operations.names["forward and moments", "im2col"] == 0
