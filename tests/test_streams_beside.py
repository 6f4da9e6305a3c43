from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest
import torch

from warp_unlearning import streams_beside
from warp_unlearning.streams_beside import ahead_of, sides_of


class Stream:
    """Stands in for a stream."""

    _numbers = count()
    levels = 0, -5

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """The least and the greatest."""
        return cls.levels

    def __init__(self, device: object = None, *, priority: int = 0) -> None:
        self.device, self.priority, self.cuda_stream = device, priority, next(self._numbers)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_beside, "_OF", {})
    monkeypatch.setattr(torch.cuda, "Stream", Stream)


def test_nobody_shares_a_stream_and_all_fit_into_those_of_their_priority() -> None:
    owners: list[Any] = [Stream() for _ in range(8)]
    found: list[Any] = [stream for owner in owners for stream in (*sides_of(owner), ahead_of(owner))]
    assert len({stream.cuda_stream for stream in (*found, *owners)}) == len(found) + len(owners) == 48
    counts = Counter(stream.priority for stream in found)
    assert max(counts) < 0
    assert max(counts.values()) <= 32


def test_where_there_are_two_priorities_all_fit_into_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "levels", (0, -1))
    owners: list[Any] = [Stream() for _ in range(8)]
    found = [stream for owner in owners for stream in (*sides_of(owner), ahead_of(owner)) if stream is not None]
    assert 24 < len(found) <= 32


def test_what_is_begun_ahead_gives_way() -> None:
    owner: Any = Stream()
    ahead: Any = ahead_of(owner)
    sides: list[Any] = list(sides_of(owner))
    assert all(side.priority < ahead.priority < owner.priority for side in sides)


def test_an_owner_has_the_same_each_time() -> None:
    one: Any = Stream("gpu")
    again: Any = Stream("gpu")
    again.cuda_stream = one.cuda_stream
    assert sides_of(one) == sides_of(again)
    assert len(sides_of(one)) == 4
    assert ahead_of(one) is ahead_of(again)
    assert ahead_of(one) not in sides_of(one)


def test_there_are_none_for_a_ninth() -> None:
    owners: list[Any] = [Stream() for _ in range(9)]
    assert [bool(sides_of(owner)) for owner in owners] == [True] * 8 + [False]
    assert [ahead_of(owner) is not None for owner in owners] == [True] * 8 + [False]
    elsewhere: Any = Stream("another gpu")
    assert len(sides_of(elsewhere)) == 4
