from math import inf

from warp_unlearning.report.schema import Rate
from warp_unlearning.report.words import flat, showable, written, written_rate
from warp_unlearning.stats.intervals import Estimate


def test_numbers_are_written_with_their_intervals():
    assert str(written(Estimate(0.61234, 0.5, 0.7))) == "0.612 [0.500, 0.700]"
    assert str(written(Estimate(-0.0001, -0.5, 0.7))) == "0.000 [−0.500, 0.700]"
    assert str(written(Estimate(0.6, -inf, inf))) == "0.600 [interval unknown]"
    assert str(written(Estimate(2.0, 1.0, inf), digits=1, unit=" s")) == "2.0 s [1.0, unbounded]"
    assert str(written(None)) == "not measured"
    assert str(written(Estimate(1234.5, 1000, 2000), digits=0)) == "1,234 [1,000, 2,000]"


def test_rates_that_are_not_resolved_have_no_number():
    assert str(written_rate(None)) == "not measured"
    unresolved = Rate(fpr=0.001, resolved=False, negatives=1200, tpr=None)
    assert str(written_rate(unresolved)) == "unresolved (1,200 negatives)"
    resolved = Rate(fpr=0.01, resolved=True, negatives=5000, tpr=Estimate(0.25, 0.2, 0.3))
    assert str(written_rate(resolved)) == "25.0 % [20.0, 30.0]"


def test_nested_data_are_flat_text():
    data = {"a": {"b": [1, True], "c": {}}, "rows": [{"x": 1e-9}], "none": [], "deep": {"d": {"e": None}}}
    assert flat(data) == (
        ("a.b", "1, yes"),
        ("a.c", "(none)"),
        ("rows[0].x", "1e-09"),
        ("none", "(none)"),
        ("deep.d.e", "(none)"),
    )
    assert flat({}) == ()


def test_what_cannot_be_shown_is_replaced():
    assert showable("a\x00\x1b\u202e\ud800\n日本") == "a\ufffd\ufffd\ufffd\ufffd\n日本"
