from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.runs.resting_lanes import APART, FIRST_REST, LONGEST_REST, RestingLanes


def rest_after_failed_trials(lanes: RestingLanes[str], *, trials: int, now: float) -> tuple[float, float]:
    """Turn the lane away from so many trials; returns how long it rests then, and the time at its end."""
    lanes.turned_away(["a"], now=now)
    for _ in range(trials):
        lanes.ended_well("other")
        now = end_of_rest(lanes, now=now)
        lanes.turned_away(["a"], now=now)
    lanes.ended_well("other")
    end = end_of_rest(lanes, now=now)
    return end - now, end


def end_of_rest(lanes: RestingLanes[str], *, now: float) -> float:
    """The first whole second at which a lane comes back."""
    for second in range(10_000):
        if lanes.back(now=now + second) is not None:
            return now + second
    raise AssertionError("no lane comes back")


def test_a_lane_rests_until_the_time_has_passed_and_a_job_has_ended_well() -> None:
    lanes: RestingLanes[str] = RestingLanes()
    assert lanes.back(now=0.0) is None
    lanes.ended_well("b")
    lanes.turned_away(["a"], now=100.0)
    assert lanes.back(now=100.0 + 10 * FIRST_REST) is None
    lanes.ended_well("b")
    assert lanes.back(now=100.0 + FIRST_REST - 0.1) is None
    assert lanes.back(now=100.0 + FIRST_REST) == "a"
    assert lanes.back(now=100.0 + 10 * FIRST_REST) is None


def test_lanes_come_back_one_after_another_the_longest_at_rest_first() -> None:
    lanes: RestingLanes[str] = RestingLanes()
    lanes.turned_away(["a", "b"], now=0.0)
    lanes.turned_away(["c"], now=1.0)
    lanes.ended_well("d")
    assert lanes.back(now=FIRST_REST) is None
    start = 1.0 + FIRST_REST
    assert lanes.back(now=start) == "a"
    assert lanes.back(now=start + APART - 0.1) is None
    assert lanes.back(now=start + APART) == "b"
    assert lanes.back(now=start + 2 * APART) == "c"


@pytest.mark.parametrize("trials", range(8))
def test_the_rest_doubles_with_each_trial_that_fails(trials: int) -> None:
    rest, _ = rest_after_failed_trials(RestingLanes(), trials=trials, now=50.0)
    assert rest == min(FIRST_REST * 2**trials, LONGEST_REST)


def test_a_trial_that_ends_well_makes_the_rest_short_again() -> None:
    lanes: RestingLanes[str] = RestingLanes()
    _, now = rest_after_failed_trials(lanes, trials=3, now=0.0)
    lanes.ended_well("a")
    assert rest_after_failed_trials(lanes, trials=0, now=now)[0] == FIRST_REST


def test_a_job_that_ends_well_in_another_lane_does_not() -> None:
    lanes: RestingLanes[str] = RestingLanes()
    _, now = rest_after_failed_trials(lanes, trials=1, now=0.0)
    lanes.ended_well("other")
    assert rest_after_failed_trials(lanes, trials=0, now=now)[0] == 4 * FIRST_REST


def test_a_trial_fails_whichever_lane_is_turned_away_and_once_for_all_of_them() -> None:
    lanes: RestingLanes[str] = RestingLanes()
    _, now = rest_after_failed_trials(lanes, trials=0, now=0.0)
    lanes.turned_away(["b"], now=now)
    lanes.turned_away(["c"], now=now)
    # The job in the lane that came back goes on in the place of another: that is no trial that ends well.
    lanes.ended_well("a")
    lanes.turned_away(["d"], now=now)
    lanes.ended_well("a")
    assert end_of_rest(lanes, now=now) - now == 2 * FIRST_REST


@given(st.lists(st.sampled_from(["away", "well", "back"]), max_size=60), st.integers(1, 30))
def test_no_lane_is_lost_or_doubled(happens: list[str], step: int) -> None:
    lanes: RestingLanes[int] = RestingLanes()
    awake, now = list(range(4)), 0.0
    for what in happens:
        now += step
        if what == "away" and len(awake) > 1:
            lanes.turned_away([awake.pop(0)], now=now)
        elif what == "well":
            lanes.ended_well(awake[0])
        elif (lane := lanes.back(now=now)) is not None:
            awake.append(lane)
    lanes.ended_well(awake[0])
    for _ in range(4):
        now += LONGEST_REST
        if (lane := lanes.back(now=now)) is not None:
            awake.append(lane)
    assert sorted(awake) == list(range(4))
