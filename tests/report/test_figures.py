from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from warp_unlearning.report.drawing import house_style
from warp_unlearning.report.figures import (
    arms_plot,
    cost_gallery,
    histogram_gallery,
    risk_gallery,
    roc_gallery,
)
from warp_unlearning.stats.intervals import Estimate


def changed(record: Any, **fields: Any) -> Any:
    return record.model_copy(update=fields)


def axes_of(plot):
    with house_style():
        return plot.draw().axes[0]


def points(axes):
    return [line for line in axes.lines if len(line.get_xdata()) == 1]


def test_every_arm_has_its_dot_and_interval_beside_guessing_and_retraining(results):
    first = results.arms[0]
    retrained = changed(first, method="retrain", all=changed(first.all, auc=Estimate(0.52, 0.5, 0.54)))
    plot = arms_plot("AUC", [*results.arms, retrained])
    axes = axes_of(plot)
    assert sorted(p.get_xdata()[0] for p in points(axes)) == sorted(arm.all.auc.value for arm in results.arms)
    bars = [list(line.get_xdata()) for line in axes.lines]
    assert all([arm.all.auc.low, arm.all.auc.high] in bars for arm in results.arms)
    assert [0.5, 0.5] in bars
    assert [0.52, 0.52] in bars
    assert [label.get_text() for label in axes.get_yticklabels()] == ["NGP", "SCRUB", "BT"]
    heights = [p.get_ydata()[0] for p in points(axes)]
    assert heights == sorted(heights)
    assert len(set(heights)) == len(heights)
    assert "retraining 0.520 [0.500, 0.540]" in plot.description


def test_retraining_alone_has_a_row(results):
    axes = axes_of(arms_plot("AUC", [changed(results.arms[0], method="retrain")]))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["retraining"]
    assert len(points(axes)) == 1


def test_seconds_start_at_0_and_arms_that_were_not_timed_are_left_out(results):
    some = changed(results, arms=(results.arms[0], changed(results.arms[1], seconds=None)))
    axes = axes_of(cost_gallery(some).plots[0])
    assert axes.get_xlim()[0] == 0
    assert [p.get_xdata()[0] for p in points(axes)] == [results.arms[0].seconds.unlearning.value]
    assert cost_gallery(changed(results, arms=(changed(results.arms[0], seconds=None),))).plots == ()


def test_curves_are_those_of_the_file(results):
    axes = axes_of(roc_gallery(results, "linear").plots[0])
    curves = {line.get_label(): line for line in axes.lines}
    assert list(curves["WARP"].get_xdata()) == list(results.arms[1].roc.fpr)
    assert list(curves["WARP"].get_ydata()) == list(results.arms[1].roc.tpr)
    assert axes.get_xlim() == (0, 1)


def test_logarithmic_curves_span_the_whole_range_and_mark_what_is_unresolved(results):
    axes = axes_of(roc_gallery(results, "log").plots[0])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    negatives = results.arms[0].all.negatives
    assert axes.get_xlim() == (pytest.approx(1 / negatives), 1)
    curve = next(line for line in axes.lines if line.get_label() == "WARP")
    assert (min(curve.get_xdata()), max(curve.get_xdata())) == (pytest.approx(1 / negatives), 1)
    shade = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert shade.x1 == pytest.approx(10 / negatives)
    assert axes.xaxis.get_major_formatter()(0.001) == "0.1 %"


def test_every_rate_that_is_resolved_is_marked_with_its_interval(results):
    axes = axes_of(roc_gallery(results, "linear").plots[0])
    rates = [rate for arm in results.arms[:2] for rate in arm.all.rates if rate.tpr is not None]
    assert len(rates) >= 4
    marks = {(line.get_xdata()[0], line.get_ydata()[0]) for line in points(axes)}
    assert marks == {(rate.fpr, rate.tpr.value) for rate in rates}
    bars = [list(line.get_ydata()) for line in axes.lines]
    assert all([rate.tpr.low, rate.tpr.high] in bars for rate in rates)


def test_histograms_show_both_hypotheses(results):
    axes = axes_of(histogram_gallery(results).plots[0])
    values = [patch.get_data().values.tolist() for patch in axes.patches]
    arm = results.arms[0].histogram
    assert values == [list(arm.never), list(arm.never), list(arm.forgotten), list(arm.forgotten)]


def test_the_line_through_the_risks_is_the_median_of_tenths(results):
    risk = results.arms[0].risk
    axes = axes_of(risk_gallery(results).plots[0])
    dots, line = axes.lines[:2]
    assert sorted(dots.get_xdata()) == sorted(risk.gradient_norm)
    pairs = sorted(zip(risk.gradient_norm, risk.score, strict=True))
    size = len(pairs) // 10
    assert line.get_ydata()[0] == pytest.approx(np.median([y for _, y in pairs[:size]]))
    assert line.get_ydata()[-1] == pytest.approx(np.median([y for _, y in pairs[-size:]]))


def test_gradients_of_zero_do_not_break_the_axis(data, read):
    data["arms"] = data["arms"][:1]
    data["arms"][0]["risk"] = {"gradient_norm": [0.0, 0.0, 2.0], "score": [1.0, -1.0, 0.5]}
    plot = risk_gallery(read(data)).plots[0]
    assert axes_of(plot).get_xscale() == "linear"
    ElementTree.fromstring(plot.svg("a"))


@pytest.mark.parametrize(
    ("model", "label"), [(None, "unlearned"), ("unlearned", "unlearned"), ("original", "original")]
)
def test_the_figure_of_risks_says_under_which_model_the_gradient_is_that_of(data, read, model, label):
    if model is not None:
        data["arms"][0]["risk"]["model"] = model
    axes = axes_of(risk_gallery(read(data)).plots[0])
    assert axes.get_xlabel() == f"norm of the forget gradient, {label} model"


def test_descriptions_have_the_numbers_in_words(results):
    auc = results.arms[1].all.auc
    text = roc_gallery(results, "log").plots[0].description
    assert f"WARP: AUC {auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]" in text
