from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.runs.job_graph import job_graph
from warp_unlearning.runs.jobs import Job
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
        )
        for i in range(count)
    ]
    return draw(st.permutations(made))


@given(jobs())
def test_each_comes_after_what_it_needs_and_the_chain_is_the_costliest_path(given_jobs: list[Job]) -> None:
    graph = job_graph(given_jobs)
    order = list(graph.jobs)
    assert set(order) == {job.key for job in given_jobs}
    for job in given_jobs:
        assert all(order.index(need) < order.index(job.key) for need in job.needs)
        assert all(job.key in graph.dependants[need] for need in job.needs)

    def paths(of: Key) -> float:
        cost = graph.jobs[of].cost
        return cost + max((paths(job.key) for job in given_jobs if of in job.needs), default=0.0)

    assert dict(graph.chain) == {job.key: paths(job.key) for job in given_jobs}
    assert not graph.outside


def test_needs_that_are_no_jobs_are_named_with_one_that_has_them() -> None:
    assert job_graph([Job(key(1), (key(0),))]).outside == {key(0): key(1)}


def test_one_job_twice_is_one() -> None:
    twice = job_graph([Job(key(0)), Job(key(1), (key(0), key(0))), Job(key(0))])
    assert list(twice.jobs) == [key(0), key(1)]
    assert twice.dependants[key(0)] == (key(1),)


def test_one_key_with_different_needs_is_an_error() -> None:
    with pytest.raises(InputError, match="given twice, with different needs"):
        job_graph([Job(key(0)), Job(key(1), (key(0),)), Job(key(1))])


def test_a_circle_is_an_error() -> None:
    with pytest.raises(InputError, match="in a circle"):
        job_graph([Job(key(0), (key(2),)), Job(key(1), (key(0),)), Job(key(2), (key(1),)), Job(key(3))])
    with pytest.raises(InputError, match="needs its own result"):
        Job(key(0), (key(0),))


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_costs_are_numbers_from_nought(cost: float) -> None:
    with pytest.raises(InputError, match="has cost"):
        Job(key(0), cost=cost)


def test_no_jobs_are_no_error() -> None:
    assert not job_graph([]).jobs
