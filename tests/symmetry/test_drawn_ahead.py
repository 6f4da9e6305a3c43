from __future__ import annotations

import torch
from torch import Tensor

from warp_unlearning.symmetry.drawn_ahead import DrawnAhead

SHAPES = ((3, 4), (2, 5), (1, 1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def asked(drawn: DrawnAhead) -> list[Tensor]:
    """The numbers of one pass."""
    drawn.begin()
    return [drawn.uniform(*shape) for shape in SHAPES]


def provided() -> DrawnAhead:
    drawn = DrawnAhead(torch.device("cpu"))
    asked(drawn)
    drawn.provide()
    return drawn


def test_a_first_pass_shows_how_many_there_have_to_be() -> None:
    drawn = DrawnAhead(torch.device("cpu"))
    assert all(torch.equal(found, torch.zeros(shape)) for found, shape in zip(asked(drawn), SHAPES, strict=True))
    assert not drawn.used_up
    drawn.provide()
    asked(drawn)
    assert drawn.used_up
    drawn.uniform(1, 1)
    assert not drawn.used_up


def test_each_pass_is_given_the_same_places_and_every_number_once() -> None:
    drawn = provided()
    first = asked(drawn)
    drawn.draw(generator())
    again = asked(drawn)
    assert [a.data_ptr() for a in first] == [a.data_ptr() for a in again]
    assert [tuple(a.shape) for a in again] == list(SHAPES)
    together = torch.cat([a.flatten() for a in again])
    assert torch.equal(together, torch.empty(23).uniform_(generator=generator()))
    assert len(together.unique()) == 23


def test_the_numbers_are_the_generators() -> None:
    drawn, found = provided(), []
    for seed in (1, 1, 2):
        drawn.draw(generator(seed))
        found.append(torch.cat([a.flatten() for a in asked(drawn)]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_more_than_there_are_is_zeros_and_not_what_others_were_given() -> None:
    drawn = provided()
    drawn.draw(generator())
    asked(drawn)
    assert torch.equal(drawn.uniform(2, 2), torch.zeros(2, 2))


def test_tables_are_held_once_each() -> None:
    drawn, table = DrawnAhead(torch.device("cpu")), torch.arange(3)
    for _ in range(3):
        drawn.hold(table, torch.arange(2))
    assert any(held is table for held in drawn._tables.values())
    assert len(drawn._tables) == 4
