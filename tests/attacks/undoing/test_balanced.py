from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.attacks.undoing.balanced import balanced


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 10_000))
def test_scales_do_not_show_and_orders_do(out: int, width: int, seed: int) -> None:
    weight = drawn(out, width, 3, seed=seed)
    rows, columns = drawn(out, seed=seed + 1).exp(), drawn(width, seed=seed + 2).exp()
    order = torch.randperm(out, generator=torch.Generator().manual_seed(seed))
    moved = (weight * rows[:, None, None] * columns[None, :, None])[order]
    torch.testing.assert_close(balanced(moved), balanced(weight)[order], rtol=1e-4, atol=1e-4)


def test_rows_are_unit_and_columns_equal() -> None:
    energies = balanced(drawn(5, 3, 2, 2, seed=0)).square().sum((2, 3))
    torch.testing.assert_close(energies.sum(1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(energies.sum(0), torch.full((3,), 5 / 3, dtype=torch.float64), rtol=1e-5, atol=0)


def test_blocks_are_balanced_by_themselves() -> None:
    weight = drawn(6, 3, seed=1)
    apart = torch.cat([balanced(part) for part in weight.chunk(2)])
    torch.testing.assert_close(balanced(weight, blocks=2), apart, rtol=1e-6, atol=1e-6)


def test_rows_and_columns_of_zeros_stay() -> None:
    weight = drawn(4, 3, seed=2)
    weight[1], weight[:, 2] = 0, 0
    found = balanced(weight)
    assert bool(found.isfinite().all())
    assert bool((found[1] == 0).all())
    assert bool((found[:, 2] == 0).all())
    torch.testing.assert_close(found[[0, 2, 3]].square().sum(1), torch.ones(3, dtype=torch.float64))
