import pytest

from warp_unlearning.errors import DataError
from warp_unlearning.report.page import make_report


def test_a_rate_that_is_not_resolved_has_no_number(data, read):
    rate = data["arms"][0]["all"]["rates"][0]
    rate |= {"resolved": False, "tpr": {"value": 0.5, "low": 0.4, "high": 0.6}}
    assert read(data).arms[0].score.rates[0].tpr is None


def test_null_is_not_measured(data, read):
    arm = data["arms"][0]
    for key in ("all", "against_originals", "retain_leakage", "gradient_test", "strongest", "accuracy", "roc"):
        arm[key] = None
    arm["seconds"]["unlearning"] = {"value": None, "low": None, "high": None}
    found = read(data).arms[0]
    assert found.score is None
    assert found.accuracy is None
    assert found.seconds.unlearning.value is None


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("missing", -1, "0 or more"),
        ("missing", 1.5, "whole number"),
        ("complete", 1, "true or false"),
        ("accuracy", {"forget": {"value": 0.5, "low": 0.6, "high": 0.4}}, "lower end"),
    ],
)
def test_wrong_counts_flags_and_intervals_are_refused(data, read, part, value, says):
    data["arms"][2][part] = value
    with pytest.raises(DataError, match=rf"arms\[2\]\.{part}.*{says}"):
        read(data)


def test_the_strongest_attacker_is_read_only_where_that_is_fair(data, read):
    leak = {"attack": "a", "strength": {"value": 0.6, "low": 0.55, "high": 0.65}}
    for extra, expected in (
        ({"pairs": 1}, "leak"),
        ({"pairs": 4}, None),
        ({"pairs": 4, "verdict": "inconclusive"}, "inconclusive"),
        ({"pairs": 1, "verdict": None}, None),
    ):
        data["arms"][0]["strongest"] = leak | extra
        assert read(data).arms[0].verdicts["strongest attacker"] == expected
    data["arms"][0]["strongest"] = leak | {"pairs": 1, "strength": {"value": 0.51, "low": 0.5, "high": 0.515}}
    assert read(data).arms[0].verdicts["strongest attacker"] == "no leak found"


def test_an_arm_that_could_not_be_scored(data, read):
    keys = ("all", "slices", "against_originals", "retain_leakage", "reduction", "roc", "histogram", "risk")
    arm = data["arms"][1] | dict.fromkeys(keys) | {"problem": "one shadow is left"}
    arm["accuracy"] = {"forget": None, "retain": None, "test": None}
    arm["seconds"] = {"unlearning": None, "defense_share": None}
    found = read(data | {"arms": [data["arms"][0], arm]})
    assert found.arms[1].problem == "one shadow is left"
    assert found.arms[1].slices == {}
    assert not found.complete


def test_several_pairs_have_no_rates(data, read):
    for arm in data["arms"]:
        arm["gradient_test"] |= {"pairs": 2, "rates": None}
    found = read(data)
    assert [arm.gradient_test.rates for arm in found.arms] == [()] * len(found.arms)
    assert found.arms[0].gradient_test.rate(0.01) is None
    make_report(found)
