import pytest

from warp_unlearning.report.measures import Estimate
from warp_unlearning.report.radar_plots import radar_axes, radar_gallery


def test_the_six_axes_and_their_values(results):
    axes = radar_axes(results)
    assert [axis.label.replace("\n", " ") for axis in axes] == [
        "black-box AUC",
        "black-box TPR at 1 % FPR",
        "AUC, most memorised 1 %",
        "white-box AUC",
        "white-box TPR at 1 % FPR",
        "test accuracy",
    ]
    arm = results.arms[0]
    found = [axis.value(arm) for axis in axes]
    area, slice_area, white = arm.score.auc, arm.slices["most memorised 1 %"].auc, arm.gradient_test.auc
    assert found[0].value == pytest.approx(1 - 2 * abs(area.value - 0.5))
    assert found[0].low == pytest.approx(1 - 2 * (area.high - 0.5))
    assert found[2].value == pytest.approx(1 - 2 * abs(slice_area.value - 0.5))
    assert found[3].value == pytest.approx(1 - 2 * abs(white.value - 0.5))
    rate = arm.score.rate(0.01).tpr
    assert found[1].value == pytest.approx(1 - (rate.value - 0.01) / 0.99)
    assert found[1].low == pytest.approx(1 - (rate.high - 0.01) / 0.99)
    assert found[5] == arm.accuracy.test


def test_an_attacker_who_is_worse_than_guessing_at_a_rate_is_drawn_at_the_rim(data, read):
    for rate in data["arms"][0]["all"]["rates"]:
        if rate["fpr"] == 0.01:
            rate["tpr"] = {"value": 0.0, "low": 0.0, "high": 0.02}
    found = read(data)
    assert radar_axes(found)[1].value(found.arms[0]) == Estimate(1.0, pytest.approx(0.98 / 0.99), 1.0)


def test_axes_that_were_not_measured_say_so(data, read):
    for arm in data["arms"]:
        arm |= {"gradient_test": None, "slices": {}}
    svg = radar_gallery(read(data)).plots[0].svg("radar-01")
    assert svg.count("(not measured)") == 3
