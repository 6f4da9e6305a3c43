from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.training.update import cosine, geometric, staircase


def test_cosine_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    for step in range(8):
        assert cosine(step / 7) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()


@settings(deadline=None)
@given(st.floats(1e-4, 10), st.floats(1e-4, 10), st.integers(2, 50))
def test_geometric_has_equal_ratios(first: float, last: float, steps: int) -> None:
    rates = [geometric(first, last, i / steps) for i in range(steps + 1)]
    assert rates[0] == pytest.approx(first)
    assert rates[-1] == pytest.approx(last)
    for a, b in pairwise(rates):
        assert log(b / a) == pytest.approx(log(last / first) / steps, abs=1e-9)


def test_staircase_falls_after_each_milestone() -> None:
    """Ten epochs with milestones 5, 8 and 9 fall in epochs 6 and 9; a milestone's own epoch is not past it."""
    found = [staircase(e / 10, milestones=(0.5, 0.8, 0.9)) for e in range(11)]
    assert found == pytest.approx([1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.001])
    assert staircase(0.7, milestones=(0.1, 0.2), factor=0.5) == 0.25
    assert staircase(0.7, milestones=()) == 1.0
