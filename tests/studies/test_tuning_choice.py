"""The chosen trial and the frontier, against all pairs by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.studies.tuning_choice import chosen_trial, on_frontier
from warp_unlearning.studies.tuning_objectives import Objectives
from warp_unlearning.studies.tuning_search import Trial


def complete(number: int, *found: float) -> Trial:
    four: Objectives = (found[0], found[1], found[2], found[3])
    return Trial(number, {}, "complete", four)


def test_the_trial_of_smallest_euclidean_norm_is_chosen() -> None:
    # By the sum the first would be chosen, by the largest the second.
    trials = [complete(0, 0.5, 0.0, 0.0, 0.0), complete(1, 0.3, 0.3, 0.3, 0.3), complete(2, 0.4, 0.25, 0.0, 0.0)]
    assert chosen_trial(trials) == trials[2]


def test_failed_trials_are_not_chosen_and_the_first_of_equals_is() -> None:
    failed = Trial(0, {}, "failed", None, "diverged")
    trials = [failed, complete(1, 0.1, 0, 0, 0), complete(2, 0, 0.1, 0, 0)]
    assert chosen_trial(trials) == trials[1]
    assert chosen_trial([failed]) is None
    assert chosen_trial([]) is None


POINTS = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.sampled_from([0.1, 0.2, 0.3])), min_size=1, max_size=8)


@given(POINTS)
def test_the_frontier_is_what_nothing_is_better_than(points: list[tuple[float, float]]) -> None:
    found = on_frontier([a for a, _ in points], [b for _, b in points])
    for (accuracy, advantage), on in zip(points, found, strict=True):
        better = [p for p in points if p[0] >= accuracy and p[1] <= advantage and (p[0] > accuracy or p[1] < advantage)]
        assert on == (not better)
    assert any(found)
