from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from warp_unlearning.errors import InputError
from warp_unlearning.stats.intervals import (
    Estimate,
    Spread,
    mean,
    normal_beyond,
    proportion,
    share_interval,
    student_beyond,
    student_tail,
)

levels = st.sampled_from([0.5, 0.9, 0.95, 0.99])


@settings(deadline=None)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), levels)
def test_proportion_is_clopper_pearson(counts: tuple[int, int], level: float) -> None:
    successes, trials = counts
    exact = stats.binomtest(successes, trials).proportion_ci(level, method="exact")
    found = proportion(successes, trials, level=level)
    assert found.value == successes / trials
    assert found.low == pytest.approx(exact.low, rel=1e-9, abs=1e-12)
    assert found.high == pytest.approx(exact.high, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5])
def test_proportion_covers_the_truth_at_least_as_often_as_it_says(p: float) -> None:
    """Coverage summed exactly over the binomial distribution, no simulation."""
    found = [proportion(k, 40) for k in range(41)]
    covered = sum(stats.binom.pmf(k, 40, p) for k, e in enumerate(found) if e.low <= p <= e.high)
    assert 0.95 <= covered < 0.999


@pytest.mark.parametrize(("successes", "trials"), [(-1, 4), (5, 4), (0, 0), (0, -1)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(InputError, match=f"{successes} successes of {trials}"):
        proportion(successes, trials)


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20).filter(lambda v: np.std(v) > 1e-3), levels)
def test_mean_is_students_interval(values: list[float], level: float) -> None:
    found = mean(values, level=level)
    low, high = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-7), pytest.approx(high, abs=1e-7))


def test_one_value_has_no_bounds() -> None:
    assert mean([3.0]) == Estimate(3.0, -np.inf, np.inf)


def test_the_mean_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no values"):
        mean([])


def test_printed_with_three_decimals() -> None:
    assert str(Estimate(0.12345, -1.0, 2.00051)) == "0.123 [-1.000, 2.001]"


@given(tail=st.floats(1e-9, 0.999), freedom=st.floats(0.5, 5000))
def test_quantiles_are_those_of_another_library(tail: float, freedom: float) -> None:
    assert normal_beyond(tail) == pytest.approx(stats.norm.isf(tail), rel=1e-9, abs=1e-12)
    assert student_beyond(tail, freedom) == pytest.approx(stats.t.isf(tail, freedom), rel=1e-7, abs=1e-9)
    assert student_tail(tail, freedom) == pytest.approx(stats.t.sf(tail, freedom), rel=1e-9)


def test_a_share_stays_inside_its_bounds_and_is_symmetric_in_logits() -> None:
    spread = Spread(0.02**2, 12.0)
    found = share_interval(0.98, spread)
    logits = [np.log(v / (1 - v)) for v in (found.low, found.value, found.high)]
    assert 0 < found.low < 0.98 < found.high < 1
    assert logits[1] - logits[0] == pytest.approx(logits[2] - logits[1])
    assert logits[2] - logits[1] == pytest.approx(stats.t.isf(0.025, 12) * 0.02 / (0.98 * 0.02))
    with pytest.raises(InputError, match="value is 1"):
        share_interval(1.0, spread)


def test_p_values_are_students() -> None:
    assert Spread(4.0, 7.0).p_value(-3.0) == pytest.approx(2 * stats.t.sf(1.5, 7))
    assert Spread(0.0, 7.0).p_value(0.0) == 1.0
    assert Spread(0.0, 7.0).p_value(0.1) == 0.0


def test_a_level_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(InputError, match="level is 95"):
        share_interval(0.5, Spread(0.1, 3.0), level=95)


@pytest.mark.parametrize("module", ["cli.request", "cli.subject", "cli.audit_pair", "workflows.reproduce"])
def test_no_command_waits_for_scipy_stats(module: str) -> None:
    code = f"import sys, warp_unlearning.{module}; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
