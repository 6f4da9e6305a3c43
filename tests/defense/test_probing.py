from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from warp_unlearning.data.examples import TensorExamples, as_examples
from warp_unlearning.defense.probing import BATCH, JUDGES, View, draw_view
from warp_unlearning.symmetry.symmetry import Sizes


def numbered(count: int, start: int = 0) -> TensorExamples:
    """Examples that say which they are, by input and by label."""
    rows = torch.arange(start, start + count)
    return TensorExamples(rows.double().unsqueeze(1), rows)


def rows(pair: tuple[Tensor, Tensor] | None) -> list[int]:
    assert pair is not None
    assert torch.equal(pair[0].squeeze(1).long(), pair[1])
    return pair[1].tolist()


def view(count: int, sizes: Sizes = Sizes(), seed: int = 0, **sets: Any) -> View:  # noqa: B008
    given = {"forget": None, "validation": None, **sets}
    generator = torch.Generator().manual_seed(seed)
    return draw_view(numbered(count), given["forget"], given["validation"], sizes, generator=generator)


@pytest.mark.parametrize(
    ("count", "judging", "looked_at"),
    [(5, 1, 4), (60, 12, 48), (400, 80, BATCH), (2000, 400, BATCH), (5000, JUDGES, BATCH)],
)
def test_a_fifth_at_most_judges_and_is_not_looked_at(count: int, judging: int, looked_at: int) -> None:
    found = view(count)
    judges, seen = rows(found.judges), rows(found.retain)
    assert (len(judges), len(seen)) == (judging, looked_at)
    assert not set(judges) & set(seen)
    assert len(set(judges)) == judging
    assert len(set(seen)) == looked_at
    assert sorted(seen) != seen or looked_at < 5


@pytest.mark.parametrize("count", [1, 2, 4])
def test_where_there_are_too_few_the_same_examples_judge(count: int) -> None:
    found = view(count)
    assert sorted(rows(found.judges)) == sorted(rows(found.retain)) == list(range(count))


def test_the_symmetry_says_how_much_it_wants() -> None:
    assert len(rows(view(3000, Sizes(1000, 5)).retain)) == 1000
    assert len(rows(view(3000, Sizes(9999, 5)).retain)) == 3000 - JUDGES
    assert len(rows(view(3000, Sizes(3, 5), forget=numbered(600)).retain)) == BATCH
    assert len(rows(view(3000, Sizes(3, 5), forget=numbered(600)).forget)) == 5
    assert len(rows(view(3000, forget=numbered(600)).forget)) == BATCH
    assert sorted(rows(view(3000, Sizes(0, 900), forget=numbered(600)).forget)) == list(range(600))


def test_validation_data_are_drawn_where_there_are_some() -> None:
    found = view(100, validation=numbered(2000, start=7000))
    assert len(set(rows(found.validation))) == JUDGES
    assert min(rows(found.validation)) >= 7000
    assert view(100).validation is None
    assert view(100).forget is None


def test_the_generator_alone_decides() -> None:
    sets = {"forget": numbered(50), "validation": numbered(50)}
    state = torch.get_rng_state()
    first, again, other = (view(100, seed=seed, **sets) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    for name in ("retain", "judges", "forget", "validation"):
        assert rows(getattr(first, name)) == rows(getattr(again, name))
        assert rows(getattr(first, name)) != rows(getattr(other, name))


def test_batches_are_the_looked_at_inputs_in_order() -> None:
    found = view(3000, Sizes(600, 0))
    assert [len(batch) for batch in found.batches] == [BATCH, BATCH, 600 - 2 * BATCH]
    assert torch.equal(torch.cat(found.batches), found.retain[0])


class Files(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.tensor([float(i)]), i


def test_a_data_set_that_is_read_item_by_item_serves_as_well() -> None:
    found = draw_view(
        as_examples(Files(), what="retain"), None, None, Sizes(), generator=torch.Generator().manual_seed(0)
    )
    assert sorted(rows(found.judges) + rows(found.retain)) == list(range(30))
