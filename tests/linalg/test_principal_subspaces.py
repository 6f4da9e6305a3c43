from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.errors import InputError
from warp_unlearning.linalg import principal_subspaces as module
from warp_unlearning.linalg.principal_subspaces import principal_subspaces, ranks_for
from warp_unlearning.linalg.subspace import Rule, Subspace, principal_subspace, rank_for


def moment(d: int, seed: int, *, rank: int | None = None) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(d if rank is None else rank, d, generator=draw, dtype=torch.float64)
    rows = rows * 0.8 ** torch.arange(d, dtype=torch.float64)
    return rows.mT @ rows


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    fraction=st.sampled_from([0.3, 0.9, 0.99, 1.0]),
    rule=st.sampled_from(["energy", "singular_values"]),
    seed=st.integers(0, 99),
)
def test_each_is_what_it_is_by_itself(sizes: list[int], fraction: float, rule: Rule, seed: int) -> None:
    moments = [moment(d, seed + i) for i, d in enumerate(sizes)]
    for found, given_ in zip(principal_subspaces(moments, fraction, rule=rule), moments, strict=True):
        alone = principal_subspace(given_, fraction, rule=rule)
        assert found.rank == alone.rank
        assert found.captured == pytest.approx(alone.captured, abs=1e-12)
        torch.testing.assert_close(found.basis @ found.basis.mT, alone.basis @ alone.basis.mT, rtol=0, atol=1e-6)


def test_those_of_one_size_are_decomposed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda c: (stacks.append(tuple(c.shape)), eigh(c))[1])
    principal_subspaces([moment(d, d) for d in (5, 3, 5, 5)], 0.9)
    assert sorted(stacks) == [(1, 3, 3), (3, 5, 5)]


@pytest.mark.parametrize("fraction", [0.5, 0.95, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("rule", ["energy", "singular_values"])
def test_ranks_are_those_of_one_row_at_a_time(fraction: float, rule: Rule) -> None:
    rows = torch.tensor(
        [
            [8.0, 1.0, 1.0, 0.0],
            [1.0, 1.0, 1.0, 1.0],
            [0.0, 0.0, 0.0, 0.0],
            [3.0, 1e-20, -1e-17, -1.0],
            [1.0, 5e-16, 5e-16, 5e-16],
        ],
        dtype=torch.float64,
    )
    for row, (rank, captured) in zip(rows, ranks_for(rows, fraction, rule=rule).tolist(), strict=True):
        assert rank == rank_for(row, fraction, rule=rule)
        values = row.clamp(min=0)
        expected = float(values[: int(rank)].sum() / values.sum()) if rank else 0.0
        assert captured == pytest.approx(expected, abs=1e-15)


def test_nothing_and_less_than_full_rank() -> None:
    assert principal_subspaces([], 0.9) == []
    empty, flat = principal_subspaces([torch.zeros(0, 0), torch.zeros(3, 3)], 0.9)
    assert (empty.rank, flat.rank, flat.captured) == (0, 0, 0.0)
    assert principal_subspaces([moment(6, 0, rank=2)], 1.0)[0].rank == 2
    with pytest.raises(InputError, match="fraction of energy"):
        principal_subspaces([moment(3, 0)], 1.5)


def test_how_many_directions_are_expected_decides_what_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(50, 12, generator=generator, dtype=torch.float64) * 0.7 ** torch.arange(12) for _ in range(3)]
    moments = [x.mT @ x for x in rows]
    tried: list[list[int]] = []
    asked: list[int | None] = []

    def leading(given: Sequence[Tensor], fraction: float) -> list[Subspace | None]:
        tried.append([next(i for i, moment in enumerate(moments) if moment is each) for each in given])
        return [None] * len(given)

    def pays(moment: Tensor, rank: int | None) -> bool:
        asked.append(rank)
        return rank != 9

    monkeypatch.setattr(module, "products_pay", pays)
    monkeypatch.setattr(module, "leading_subspaces", leading)
    found = principal_subspaces(moments, 0.9, expected=[2, 9, None])
    assert (asked, tried) == ([2, 9, None], [[0, 2]])
    assert [each.rank for each in found] == [principal_subspace(moment, 0.9).rank for moment in moments]
    principal_subspaces(moments, 0.9)
    assert asked[3:] == [None] * 3
