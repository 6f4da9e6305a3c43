from __future__ import annotations

from typing import Any

import pytest
import torch

from warp_unlearning.symmetry.directions import inner, norm_of


def test_sums_over_tensors(kit: Any) -> None:
    a = {"u": kit.normal(2, 3), "v": kit.normal(4, seed=1)}
    b = {"u": kit.normal(2, 3, seed=2), "v": kit.normal(4, seed=3)}
    flat = [torch.cat([d["u"].flatten(), d["v"]]) for d in (a, b)]
    assert inner(a, b) == pytest.approx(float(flat[0] @ flat[1]))
    assert inner(a, {"v": b["v"]}) == pytest.approx(float(a["v"] @ b["v"]))
    assert norm_of(a) == pytest.approx(float(flat[0].norm()))
    assert norm_of({}) == inner({}, {}) == 0.0
