"""The longest of a length and its halves that does what it should."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.symmetry.halving import longest_that_does


def trials() -> tuple[list[int], Callable[[int], int]]:
    """A list of what was tried, and a trial that gives its own number."""
    seen: list[int] = []

    def tried(halved: int) -> int:
        seen.append(halved)
        return halved

    return seen, tried


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(0, 8))
def test_some_length_that_does_is_found_where_there_is_one(does: list[bool], before: int) -> None:
    """The longest, where every length shorter than one that does does so too; none is tried twice."""
    seen, tried = trials()
    found = longest_that_does(tried, does.__getitem__, halvings=len(does) - 1, before=before)
    assert len(seen) == len(set(seen))
    assert (found is not None) == any(does)
    if found is not None:
        assert does[found]
        if does == sorted(does):
            assert found == does.index(True)


@given(st.integers(0, 6))
def test_where_nothing_has_changed_two_trials_do(halved: int) -> None:
    does = [number >= halved for number in range(7)]
    seen, tried = trials()
    assert longest_that_does(tried, does.__getitem__, halvings=6, before=halved) == halved
    assert len(seen) == min(halved, 1) + 1


def test_after_a_hopeless_trial_there_is_no_other() -> None:
    seen, tried = trials()
    found = longest_that_does(tried, lambda _: False, halvings=4, before=3, hopeless=lambda _: True)
    assert found is None
    assert seen == [2]
