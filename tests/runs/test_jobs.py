from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.runs.jobs import Job, graph
from warp_unlearning.runs.keys import Key


def key(i: int) -> Key:
    return Key("k", 1, {"i": i})


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Jobs that need only those with lower numbers, in any order."""
    count = draw(st.integers(1, 8))
    made = [
        Job(
            key(i),
            tuple(key(n) for n in draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else (),
            cost=float(draw(st.integers(0, 9))),
            order=draw(st.integers(0, 1)),
        )
        for i in range(count)
    ]
    return draw(st.permutations(made))


@given(jobs())
def test_jobs_come_by_order_then_by_the_costliest_chain_behind_them(given_jobs: list[Job]) -> None:
    found = graph(given_jobs)
    assert set(found) == set(given_jobs)
    by_key = {job.key: job for job in given_jobs}

    def chain(of: Key) -> float:
        return by_key[of].cost + max((chain(job.key) for job in given_jobs if of in job.needs), default=0.0)

    rank = [(job.order, -chain(job.key)) for job in found]
    assert rank == sorted(rank)


def test_one_job_twice_is_one() -> None:
    assert [job.key for job in graph([Job(key(0)), Job(key(1), (key(0), key(0))), Job(key(0))])] == [key(0), key(1)]


def test_one_key_with_different_needs_is_an_error() -> None:
    with pytest.raises(InputError, match="given twice, with different needs"):
        graph([Job(key(0)), Job(key(1), (key(0),)), Job(key(1))])


def test_a_circle_is_an_error() -> None:
    with pytest.raises(InputError, match="in a circle"):
        graph([Job(key(0), (key(2),)), Job(key(1), (key(0),)), Job(key(2), (key(1),)), Job(key(3))])
    with pytest.raises(InputError, match="needs its own result"):
        Job(key(0), (key(0),))


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_costs_are_numbers_from_nought(cost: float) -> None:
    with pytest.raises(InputError, match="has cost"):
        Job(key(0), cost=cost)


def test_no_jobs_are_no_error() -> None:
    assert graph([]) == ()
