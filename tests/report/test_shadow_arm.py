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


def test_the_verdict_of_an_arm_is_that_of_the_file(data, read):
    arm = data["arms"][0]
    assert read(data).arms[0].verdict.as_json()["sentence"] == arm["verdict"]["sentence"]
    arm["verdict"]["outcome"] = "holds"
    with pytest.raises(DataError, match=r"arms\[0\]\.verdict.*changed by hand"):
        read(data)
    arm["verdict"] = None
    assert read(data).arms[0].verdict is None


def test_version_1_is_judged_from_the_ends_of_its_intervals(data, read):
    new = read(data).arms
    data["schema_version"] = 1
    for arm in data["arms"]:
        del arm["verdict"]
        for score in (arm["all"], *arm["slices"].values()):
            score |= {"verdict": "leak", "direction": "positives higher", "margin": 0.02, "strength": 0.6}
    for old, arm in zip(read(data).arms, new, strict=True):
        assert [e.area for e in old.verdict.evidence] == [e.area for e in arm.verdict.evidence]
        assert [e.adjusted for e in old.verdict.evidence] == [e.adjusted for e in arm.verdict.evidence]
        claims = [[(c.name, c.outcome) for c in verdict.claims] for verdict in (old.verdict, arm.verdict)]
        assert claims[0][1] == claims[1][1]
        assert (old.verdict.claims[0].outcome, old.verdict.exit != 0) == ("cannot be said", True)


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
