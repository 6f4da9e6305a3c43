"""Quantiles and tails, beside those of scipy.stats and by their definition."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from warp_unlearning.stats.tails import beta_below, beta_beyond, normal_beyond, student_beyond, student_tail

TAILS = st.floats(1e-9, 0.999)
SIZES = st.floats(0.5, 5000)


@given(tail=TAILS, freedom=SIZES, a=SIZES, b=SIZES)
def test_they_are_those_of_another_library(tail: float, freedom: float, a: float, b: float) -> None:
    assert normal_beyond(tail) == pytest.approx(stats.norm.isf(tail), rel=1e-9, abs=1e-12)
    assert student_beyond(tail, freedom) == pytest.approx(stats.t.isf(tail, freedom), rel=1e-7, abs=1e-9)
    assert beta_below(tail, a, b) == pytest.approx(stats.beta.ppf(tail, a, b), rel=1e-9)
    assert beta_beyond(tail, a, b) == pytest.approx(stats.beta.isf(tail, a, b), rel=1e-9)


@given(tail=st.floats(1e-4, 0.999), freedom=SIZES, a=st.floats(2, 5000), b=st.floats(2, 5000))
def test_a_quantile_has_the_tail_it_was_asked_for(tail: float, freedom: float, a: float, b: float) -> None:
    assert student_tail(student_beyond(tail, freedom), freedom) == pytest.approx(tail, rel=1e-6)
    assert stats.norm.sf(normal_beyond(tail)) == pytest.approx(tail, rel=1e-9)
    assert stats.beta.cdf(beta_below(tail, a, b), a, b) == pytest.approx(tail, rel=1e-6)
    assert stats.beta.sf(beta_beyond(tail, a, b), a, b) == pytest.approx(tail, rel=1e-6)


def test_ends() -> None:
    assert normal_beyond(0.5) == 0
    assert student_tail(0.0, 3) == 0.5
    # Student's distribution of one degree of freedom is Cauchy's.
    assert student_beyond(0.25, 1) == pytest.approx(1)


@pytest.mark.parametrize("module", ["cli.request", "cli.subject", "cli.audit_pair", "workflows.reproduce"])
def test_no_command_waits_for_scipy_stats(module: str) -> None:
    code = f"import sys, warp_unlearning.{module}; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
