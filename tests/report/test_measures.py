import pytest

from warp_unlearning.report.measures import Estimate, Rate, written, written_rate

AREAS = [(0.5, 0.49, 0.51), (0.2, 0.1, 0.35), (0.7, 0.6, 0.8), (0.5, 0.3, 0.7), (0.52, 0.501, 0.53), (0.49, 0.4, 0.499)]


@pytest.mark.parametrize("area", AREAS)
def test_the_strength_is_that_of_either_side(area):
    value, low, high = area
    mirrored = [max(x, 1 - x) for x in (value, low, high)]
    least = 0.5 if low <= 0.5 <= high else min(mirrored[1:])
    assert Estimate(*area).strength == Estimate(mirrored[0], least, max(mirrored))


def test_an_interval_that_is_unknown_is_not_known_to_the_statistics():
    assert Estimate(0.5, None, None).known is None
    assert Estimate(None, None, None).strength == Estimate(None, None, None)


def test_numbers_are_written_with_their_intervals():
    assert str(written(Estimate(0.61234, 0.5, 0.7))) == "0.612 [0.500, 0.700]"
    assert str(written(Estimate(-0.0001, -0.5, 0.7))) == "0.000 [−0.500, 0.700]"
    assert str(written(Estimate(0.6, None, None))) == "0.600 [interval unknown]"
    assert str(written(Estimate(2.0, 1.0, None), digits=1, unit=" s")) == "2.0 s [1.0, unbounded]"
    assert str(written(Estimate(None, None, None))) == "not measured"
    assert str(written(Estimate(1234.5, 1000, 2000), digits=0)) == "1,234 [1,000, 2,000]"


def test_rates_that_are_not_resolved_have_no_number():
    assert str(written_rate(Rate(0.001, False, 9600, None))) == "unresolved (9,600 negatives)"
    assert str(written_rate(Rate(0.01, True, 9600, Estimate(0.123, 0.1, 0.15)))) == "12.3 % [10.0, 15.0]"
    assert str(written_rate(None)) == "not measured"


def test_a_falling_line_turns_the_interval():
    assert Estimate(0.2, 0.1, 0.4).mapped(-1, 1) == Estimate(0.8, 0.6, 0.9)
