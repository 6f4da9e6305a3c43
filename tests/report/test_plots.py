from xml.etree import ElementTree

import numpy as np
import pytest

from warp_unlearning.report.histogram_plots import histogram_gallery
from warp_unlearning.report.risk_plots import risk_gallery
from warp_unlearning.report.roc_plots import roc_gallery
from warp_unlearning.report.style import house_style


def axes_of(plot):
    with house_style():
        return plot.draw().axes[0]


def test_curves_are_those_of_the_file(results):
    axes = axes_of(roc_gallery(results, "linear").plots[0])
    curves = {line.get_label(): line for line in axes.lines}
    assert list(curves["WARP"].get_xdata()) == list(results.arms[1].roc.x)
    assert list(curves["WARP"].get_ydata()) == list(results.arms[1].roc.y)
    assert axes.get_xscale() == "linear"


def test_logarithmic_curves_mark_what_is_unresolved(results):
    axes = axes_of(roc_gallery(results, "log").plots[0])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    negatives = results.arms[0].score.negatives
    shade = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert shade.x1 == pytest.approx(10 / negatives)
    assert [label.get_text() for label in axes.get_xticklabels()][-2:] != []
    assert axes.xaxis.get_major_formatter()(0.001) == "0.1 %"


def test_rates_are_drawn_with_their_intervals(results):
    axes = axes_of(roc_gallery(results, "linear").plots[0])
    rate = results.arms[0].score.rate(0.01).tpr
    bars = [line.get_ydata() for line in axes.lines if list(line.get_xdata()) == [0.01, 0.01]]
    assert [rate.low, rate.high] in [list(bar) for bar in bars]


def test_histograms_show_both_hypotheses(results):
    axes = axes_of(histogram_gallery(results).plots[0])
    values = [patch.get_data().values.tolist() for patch in axes.patches]
    arm = results.arms[0].histogram
    assert values == [list(arm.never), list(arm.never), list(arm.forgotten), list(arm.forgotten)]


def test_the_line_through_the_risks_is_the_median_of_tenths(results):
    risk = results.arms[0].risk
    axes = axes_of(risk_gallery(results).plots[0])
    points, line = axes.lines[:2]
    assert sorted(points.get_xdata()) == sorted(risk.x)
    pairs = sorted(zip(risk.x, risk.y, strict=True))
    size = len(pairs) // 10
    assert line.get_ydata()[0] == pytest.approx(np.median([y for _, y in pairs[:size]]))
    assert line.get_ydata()[-1] == pytest.approx(np.median([y for _, y in pairs[-size:]]))


def test_gradients_of_zero_do_not_break_the_axis(data, read):
    data["arms"] = data["arms"][:1]
    data["arms"][0]["risk"] = {"gradient_norm": [0.0, 0.0, 2.0], "score": [1.0, -1.0, 0.5]}
    plot = risk_gallery(read(data)).plots[0]
    assert axes_of(plot).get_xscale() == "linear"
    ElementTree.fromstring(plot.svg("a"))


def test_descriptions_have_the_numbers_in_words(results):
    auc = results.arms[1].score.auc
    text = roc_gallery(results, "log").plots[0].description
    assert f"WARP: AUC {auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]" in text
