from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.linalg.held_energy import captured_energy, held_by, missed_by


def moment(d: int, seed: int, decay: float = 0.99) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * d, d, generator=draw, dtype=torch.float64) * decay ** torch.arange(d, dtype=torch.float64)
    return x.mT @ x


def basis(d: int, k: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, k, generator=draw, dtype=torch.float64)).Q


@given(d=st.integers(1, 30), seed=st.integers(0, 99), draw=st.data())
def test_of_few_columns_it_is_exact(d: int, seed: int, draw: st.DataObject) -> None:
    c, b = moment(d, seed), basis(d, draw.draw(st.integers(0, d)), seed + 1)
    inside = sum(float(column @ c @ column) for column in b.mT)
    total = float(c.diagonal().sum())
    assert held_by(c, b) == pytest.approx(inside, abs=1e-9 * total)
    assert missed_by(c, b) == pytest.approx(total - inside, abs=1e-9 * total)
    assert captured_energy(c, b) == pytest.approx(inside / total, abs=1e-9)


@pytest.mark.parametrize("k", [512, 600, 700])
def test_of_many_columns_it_is_close(k: int) -> None:
    c, b = moment(700, 0), basis(700, k, 1)
    inside = float((b * (c @ b)).sum())
    total = float(c.diagonal().sum())
    assert held_by(c, b) == pytest.approx(inside, rel=0.06)
    assert missed_by(c, b) == pytest.approx(total - inside, rel=0.15, abs=1e-9 * total)


def test_of_nothing_nothing_is_captured() -> None:
    assert captured_energy(torch.zeros(4, 4), torch.eye(4)[:, :2]) == 0.0


def test_columns_that_are_not_orthonormal_hold_no_energy_that_is_not_there() -> None:
    c, b = moment(700, 2), basis(700, 512, 3)
    claimed = 1 - missed_by(c, b * 1.0005) / float(c.diagonal().sum())
    assert claimed <= captured_energy(c, b) * 1.05
