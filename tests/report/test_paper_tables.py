"""Every study from made-up results: what its Markdown says, and that its figures are figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.report.paper_tables import STUDIES, Rendered, render

Make = Callable[..., dict[str, Any]]
RESULTS = Path(__file__).parents[2] / "results"
# Those of `small_tuned` were rounded after their tables were made, which moved the last digit of some numbers.
COMMITTED = sorted(
    path.with_name("results.json")
    for path in RESULTS.rglob("table.md")
    if path.with_name("results.json").exists() and "small_tuned" not in path.parts
)
Studies = dict[str, dict[str, Any]]


def estimate(value: float, reach: float | None = 0.01) -> dict[str, float | None]:
    return {"value": value, "low": None, "high": None} if reach is None else _around(value, reach)


def _around(value: float, reach: float) -> dict[str, float | None]:
    return {"value": value, "low": value - reach, "high": value + reach}


def line(found: Rendered, start: str) -> str:
    """The first line of a table, or of a list, that starts so."""
    return next(text for text in found.markdown.splitlines() if text.startswith((f"| {start} |", f"- {start}")))


def rates(*values: float | None) -> list[dict[str, Any]]:
    return [
        {"fpr": fpr, "resolved": v is not None, "negatives": 900, "tpr": None if v is None else estimate(v)}
        for fpr, v in zip((0.001, 0.01, 0.05), values, strict=True)
    ]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_a_section_with_whole_tables_and_figures(name: str, every_study: Studies) -> None:
    found = render(every_study[name], folder="docs/figures/")
    assert found.markdown.startswith("## ")
    assert "`warp reproduce NAME --shadows 12`" in found.markdown
    assert "device one card, cores 2" in found.markdown
    lines = found.markdown.splitlines()
    for first, second in pairwise(lines):
        if first.startswith("|") and second.startswith("|"):
            assert first.replace("\\|", "").count("|") == second.replace("\\|", "").count("|")
    assert any(text.startswith("|---|") for text in lines)
    assert found.figures
    for file, content in found.figures.items():
        assert f"(docs/figures/{file})" in found.markdown
        root = ET.fromstring(content)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 5


@pytest.mark.parametrize("results", COMMITTED, ids=lambda path: str(path.parent.relative_to(RESULTS)))
def test_a_committed_study_gives_its_committed_table(results: Path) -> None:
    assert render(json.loads(results.read_text())).markdown == results.with_name("table.md").read_text()


@pytest.mark.parametrize("name", ["table1", "runtime", "adaptive"])
def test_the_same_results_give_the_same_bytes(name: str, every_study: Studies) -> None:
    assert render(every_study[name]) == render(deepcopy(every_study[name]))


def test_an_unknown_study_is_an_error() -> None:
    with pytest.raises(InputError, match="did you mean 'table1'"):
        render({"study": "table2"})
    with pytest.raises(InputError, match="unknown study None"):
        render({})


def test_table_1_judges_every_number(study: Make, arm: Make) -> None:
    base = arm("ngp")
    base["all"] |= {"auc": estimate(0.55), "rates": rates(None, 0.1, 0.08)}
    base["accuracy"]["test"] = estimate(0.808, None)
    found = render(study("table1", [base]))
    assert line(found, "NGP") == (
        "| NGP | 0.550 [0.540, 0.560]; paper 0.545, agrees | not resolved (900 negatives); paper 0.012 | "
        "0.100 [0.090, 0.110]; paper 0.030, **differs** by +0.070 | 0.080 [0.070, 0.090]; paper 0.077, agrees |"
    )
    assert "0.808 (no interval); paper 0.808 |" in found.markdown
    assert "Of 108 numbers of the paper" in found.markdown
    assert "99 not measured" in found.markdown
    assert "not measured: NGP + WARP, SCRUB" in found.markdown


def test_table_1_states_both_formulas_and_a_direction_only_with_an_interval(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp")
    warp["reduction"] = {
        "auc": estimate(0.6, 0.1),
        "tpr_at_1": None,
        "note": "",
        "difference": estimate(0.03),
        "privacy": estimate(0.06, 0.02),
    }
    row = line(render(study("table1", [base, warp])), "NGP + WARP | 0.030 [0.020, 0.040]")
    assert row.endswith("| lowers | 60.0 [50.0, 70.0], agrees | 64.4 | 64.4 | 6.0 [4.0, 8.0] | 6.4 |")
    warp["reduction"]["difference"] = estimate(0.03, 0.04)
    assert "| not shown: the interval contains 0 |" in render(study("table1", [base, warp])).markdown


def test_table_1_has_what_defences_change_of_the_most_memorised(study: Make, arm: Make) -> None:
    base, warp = arm("scrub"), arm("ngp", "warp", method="scrub")
    name = "most memorised 1 %"
    change = {"difference": estimate(0.09), "auc": estimate(0.42), "privacy": None, "note": ""}
    warp["slice_reductions"] = {name: change, "most memorised 5 %": None}
    found = render(study("table1", [base, warp])).markdown
    assert "### What defences change, most memorised 5 %" not in found
    _, part = found.split(f"### What defences change, {name}")
    # The paper has 0.710 and 0.610.
    assert "| SCRUB + WARP | 0.090 [0.080, 0.100] | lowers | 42.0 [41.0, 43.0], **differs** | 47.6 |" in part
    warp["teleports"] = {"unmoved": 1.0}
    idle = render(study("table1", [base, warp])).markdown.split(f"### What defences change, {name}")[1]
    assert "0.090" not in idle


@pytest.mark.parametrize("name", ["table1", "whitebox", "radar"])
@pytest.mark.parametrize("old", ["warp_guarded (0.1)", "warp_published (0.1)"])
def test_no_number_of_the_paper_is_beside_an_arm_of_version_0_1(study: Make, arm: Make, name: str, old: str) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp")

    def rows(*arms: Any) -> list[str]:
        lines = render(study(name, [base, *arms])).markdown.splitlines()
        return [line for line in lines if line.startswith("| NGP + ")]

    printed = rows(warp)
    assert "paper" in printed[0]
    stored = rows(arm("ngp", "warp", defense=old), arm("ngp", "warp", defense="kick (0.1)"))
    assert len(stored) == 2 * len(printed)
    assert stored[0].startswith(f"| NGP + WARP {old[5:].replace('published', 'as published')} |")
    assert any(line.startswith("| NGP + random kick (0.1) |") for line in stored)
    assert not any("paper" in line for line in stored)


def test_table_1_compares_with_the_random_kick(study: Make, arm: Make) -> None:
    base, warp, kick = arm("ngp"), arm("ngp", "warp"), arm("ngp", "warp", defense="kick")
    warp["all"]["auc"], kick["all"]["auc"] = estimate(0.6), estimate(0.7)
    found = render(study("table1", [base, warp, kick])).markdown
    assert "NGP + random kick" in found
    assert "| NGP + WARP | 0.100 [0.080, 0.120] † | yes |" in found
    warp["against"] = {"kick": {"auc": estimate(0.1, 0.2)}}
    found = render(study("table1", [base, warp, kick])).markdown
    assert "| NGP + WARP | 0.100 [−0.100, 0.300] | not shown: the interval contains 0 |" in found


def test_an_arm_without_scores_says_why(study: Make, arm: Make) -> None:
    parts = ("all", "slices", "against_originals", "retain_leakage", "reduction", "roc", "histogram", "risk")
    broken = {**arm("ngp"), **dict.fromkeys(parts), "problem": "too few models", "missing": 4, "complete": False}
    found = render(study("table1", [broken, arm("scrub")])).markdown
    assert "- ngp: too few models" in found
    assert "| NGP | not measured; paper 0.545 |" in found
    for name in ("whitebox", "radar", "risk-vs-norm"):
        assert "ngp: too few models" in render(study(name, [broken, arm("scrub")])).markdown


def test_the_white_box_has_every_attacker(study: Make, arm: Make) -> None:
    base, warp = arm("bad_teacher"), arm("bad_teacher", "warp")
    base["gradient_test"] = {"auc": estimate(0.938), "pairs": 32, "rates": None}
    warp["gradient_test"] = {"auc": estimate(0.907), "pairs": 32, "rates": None}
    warp["pair_attacks"] = [{"name": "gradient difference after span", "auc": estimate(0.93), "pairs": 32}]
    found = render(study("whitebox", [base, warp]))
    assert line(found, "BT").startswith("| BT | 32 | 0.938 [0.928, 0.948]; paper 0.938, agrees | not measured; paper")
    assert "| gradient difference after span | not measured | 0.930 [0.920, 0.940] |" in found.markdown
    change = line(found, "BT + WARP | 0.031 [0.011, 0.051] †")
    assert "| lowers | 7.1 " in change
    assert "| 7.1 | 49.2 | 50.0 " in change
    assert change.endswith("| 50.0 |")
    assert "by update alignment after span" in found.markdown


def test_the_white_box_has_the_rates_over_pairs_and_says_what_they_are(study: Make, arm: Make) -> None:
    base, warp = arm("bad_teacher"), arm("bad_teacher", "warp")
    base["gradient_test"] = {"auc": estimate(0.938), "pairs": 4, "rates": rates(None, 0.34, 0.6)}
    warp["gradient_test"] |= {"difference": estimate(0.02, 0.005)}
    found = render(study("whitebox", [base, warp]))
    assert line(found, "BT").endswith(
        "agrees | not resolved (900 negatives); paper 0.037 | 0.340 [0.330, 0.350]; paper 0.346, agrees | "
        "0.600 [0.590, 0.610]; paper 0.809, **differs** by −0.209 |"
    )
    assert "an attacker who calibrates on each model" in found.markdown
    assert line(found, "BT + WARP | 0.020 [0.015, 0.025]").startswith("| BT + WARP | 0.020 [0.015, 0.025] | lowers |")
    assert "not resolved (900 negatives); paper 0.037" in line(render(study("radar", [base, warp])), "BT")


def test_attackers_are_told_by_pairs_and_an_arm_without_a_defence_has_nothing_to_undo(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp")
    base["pair_attacks"] = [{"name": "gradient difference", "auc": estimate(0.6), "pairs": 4}]
    warp["pair_attacks"] = [
        {"name": "gradient difference", "auc": estimate(0.6), "pairs": 1},
        {"name": "gradient difference after span", "auc": estimate(0.7), "pairs": 1},
    ]
    found = render(study("whitebox", [base, warp]))
    assert "| attacker | no defence, 4 pairs | WARP, 1 pair |" in found.markdown
    assert "| gradient difference after span | nothing to undo | 0.700 [0.690, 0.710] |" in found.markdown
    assert "its interval holds for all attackers of the arm at once" in found.markdown


def test_langevin_rows_stand_beside_the_slice_they_mean(study: Make, arm: Make) -> None:
    noisy = {**arm("ngp", method="langevin"), "swept": {"epsilon": 8}}
    warp = arm("ngp", "warp")
    for found in (noisy, warp):
        for name in ("most memorised 1 %", "most memorised 5 %"):
            found["slices"][name]["auc"] = estimate(0.6 if name.endswith("1 %") else 0.91)
    shown = render(study("langevin", [warp, noisy]))
    row = line(shown, "Langevin, ε = 8")
    assert "0.600 [0.590, 0.610] |" in row
    assert "0.910 [0.900, 0.920]; paper 0.912, agrees" in row
    row = line(shown, "NGP + WARP")
    assert "0.600 [0.590, 0.610]; paper 0.598, agrees" in row
    assert "0.910 [0.900, 0.920] |" in row
    assert "leaks least" in shown.markdown or "No ε reaches" in shown.markdown


def test_langevin_is_compared_at_the_accuracy_of_warp(study: Make, arm: Make) -> None:
    def at(found: dict[str, Any], auc: float, accuracy: float) -> dict[str, Any]:
        found["all"]["auc"], found["accuracy"]["test"] = estimate(auc), estimate(accuracy)
        return found

    noisy = [
        at({**arm("ngp", method="langevin"), "swept": {"epsilon": e}}, *v)
        for e, v in ((1, (0.51, 0.6)), (16, (0.65, 0.8)))
    ]
    warp = at(arm("ngp", "warp"), 0.55, 0.8)
    found = render(study("langevin", [*noisy, warp])).markdown
    assert "Langevin, ε = 16 leaks least: AUC 0.650" in found
    assert "NGP + WARP leaks less, and the intervals do not meet" in found
    assert "No ε reaches" in render(study("langevin", [noisy[0], warp])).markdown
    assert "nothing is said" in render(study("langevin", noisy)).markdown


def test_the_trade_off_names_the_best_settings(study: Make, arm: Make) -> None:
    def at(defense: str | None, lr: float, auc: float, accuracy: float) -> dict[str, Any]:
        found = {**arm("ngp", defense), "swept": {"lr": lr}}
        found["all"]["auc"], found["accuracy"]["test"] = estimate(auc), estimate(accuracy)
        return found

    arms = [at(None, 1, 0.6, 0.80), at(None, 2, 0.55, 0.79), at("warp", 1, 0.58, 0.80), at("warp", 2, 0.52, 0.78)]
    arms[2]["reduction"] = {"auc": estimate(0.2, 0.05), "tpr_at_1": None, "note": ""}
    found = render(study("tradeoff", arms)).markdown
    assert "largest 1 − AUC of NGP (lr 2): 0.450 [0.440, 0.460]; paper about 0.455, agrees" in found
    assert "largest 1 − AUC of NGP + WARP (lr 2): 0.480 [0.470, 0.490]; paper 0.484, agrees" in found
    assert "at its highest accuracy (lr 1), advantage gone: 0.200 [0.150, 0.250]; paper about 0.18, agrees" in found


def test_fastwarp_is_near_only_where_the_interval_is(study: Make, arm: Make) -> None:
    warp, fast = arm("ngp", "warp"), arm("ngp", "warp", defense="fastwarp")
    found = render(study("fastwarp", [warp, fast])).markdown
    assert "paper at most 0.6, not resolved" in found
    warp["all"]["auc"] = fast["all"]["auc"] = estimate(0.5, 0.0)
    fast["against"] = {"warp": {"auc": estimate(0.001, 0.0005), "test_accuracy": estimate(0.01, 0.002)}}
    found = render(study("fastwarp", [warp, fast])).markdown
    assert "0.20 [0.10, 0.30]; paper at most 0.6, agrees" in found
    assert "1.00 [0.80, 1.20]; paper at most 0.3, **differs**" in found
    assert "FastWARP was not measured" in render(study("fastwarp", [warp])).markdown


def test_sensitivity_has_the_range_of_each_sweep(study: Make, arm: Make) -> None:
    def at(auc: float, accuracy: float, **values: float) -> dict[str, Any]:
        found = {**arm("ngp", "warp"), "swept": values}
        found["all"]["auc"], found["accuracy"]["test"] = estimate(auc, 0.001), estimate(accuracy, 0.001)
        return found

    arms = [at(0.52, 0.796, energy=0.95), at(0.51, 0.795, energy=0.999)]
    found = render(study("sensitivity", arms))
    assert "range of 1 − AUC | 0.010 [0.008, 0.012]; paper at most 0.015, agrees" in found.markdown
    assert "[0.794, 0.797]; paper 0.79 to 0.80, agrees" in found.markdown
    assert "The retain batch was not varied." in found.markdown
    assert list(found.figures) == ["sensitivity-energy.svg"]
    arms = [at(0.6, 0.796, batch_size=256), at(0.52, 0.7, batch_size=4096)]
    found = render(study("sensitivity", arms))
    assert "0.080 [0.078, 0.082]; paper at most 0.01, **differs**" in found.markdown
    assert "all settings: 0.096 [0.094, 0.098]; paper at most 0.006, **differs**" in found.markdown


def test_seconds_are_not_compared_and_shares_are(every_study: Studies) -> None:
    found = render(every_study["runtime"])
    row = line(found, "BT + FastWARP")
    assert "| 35.00 [34.50, 35.50]; paper 35 | 5 | 16.7 [13.1, 20.3]; paper about 17, agrees |" in row
    assert "paper about −32, **differs**" in line(found, "NGP + WARP")
    assert "WARP, mean over 2 methods, %: 83.3 [78.7, 88.1]; paper about 27, **differs**" in found.markdown
    assert "teleports of WARP over those of FastWARP: 5.00 [4.00, 6.50]; paper 2 to 3, **differs**" in found.markdown
    alone = {**every_study["runtime"], "rows": every_study["runtime"]["rows"][1:2]}
    assert "not measured; paper about −32" in render(alone).markdown


def test_reconstruction_is_paired_over_targets(every_study: Studies) -> None:
    found = render(every_study["reconstruction"]).markdown
    # The rows differ by a constant, so that the interval has no width.
    assert (
        "(filtered and inversion, no defence), dB: −5.00 [−5.00, −5.00]; it hurts; the paper: it helps, by 2.46."
        in found
    )
    assert "| joint | not measured | failed |" in found
    # Student's: 2.3646 · 0.69985 / √8 = 0.585.
    assert "18.00 [17.41, 18.59]; paper 8.28 ± 0.28 |" in found
    assert "15 numbers of the paper: 3 not measured, 12 not comparable" in found
    assert "| inversion | 0.00 [0.00, 0.00]: not shown: the interval contains 0 |" in found


def test_adaptive_says_whether_the_attacker_s_prior_hurts(every_study: Studies) -> None:
    found = render(every_study["adaptive"]).markdown
    assert "| defender's spread | σ = 0 | σ = 0.8 | as it is | undone in closed form |" in found or (
        "undone in closed form | as it is" in found
    )
    assert "less that at σ = 0: −2.40 [−2.40, −2.40], σ helps, unlike in the paper" in found
    assert "spread 0.8: " in found
    assert "narrowest spread less widest, dB: 0.70 [0.70, 0.70], a wide spread hurts this attacker" in found
    some = [row for row in every_study["adaptive"]["rows"] if row.get("sigma") != 0.8]
    assert "σ was not varied" in render({**every_study["adaptive"], "rows": some}).markdown


def test_risk_has_a_direction_only_with_an_interval_of_the_results(study: Make, arm: Make) -> None:
    base = arm("ngp")
    base["risk"] = {"gradient_norm": [1.0, 2.0, 3.0, 4.0], "score": [0.1, 0.2, 0.3, 0.4]}
    found = render(study("risk-vs-norm", [base]))
    assert line(found, "NGP") == "| NGP | 4 | 1.000 (no interval) | no interval |"
    base["risk"]["correlation"] = estimate(0.4, 0.1)
    assert line(render(study("risk-vs-norm", [base])), "NGP").endswith("| 0.400 [0.300, 0.500] | yes |")


def test_the_radar_has_the_paper_s_numbers_of_six_axes(every_study: Studies) -> None:
    found = render(every_study["radar"])
    row = line(found, "BT + WARP")
    for printed in ("0.661", "0.865", "0.907", "0.818", "0.000", "0.028"):
        assert f"paper {printed}" in row
    assert len(found.figures) == 3


def test_names_from_outside_cannot_break_a_table(study: Make, arm: Make) -> None:
    found = render(study("table1", [arm("ngp", method="a|b\n<script>")])).markdown
    assert "a\\|b &lt;script>" in found
    assert "<script>" not in found


def test_teleports_are_told_apart_from_the_first_of_a_run(every_study: dict[str, Any]) -> None:
    study = every_study["runtime"]
    assert "teleports, ms" not in render(study).markdown
    told = {"count": 3, "each": [[0.5, 0.04, 0.06], [0.4, 0.05, 0.07]]}
    rows = [{**row, "teleports": None if row["defense"] is None else told} for row in study["rows"]]
    found = render({**study, "rows": rows}).markdown
    assert found.count("| 400.0 to 500.0 | 55.0 | 40.0 to 70.0 | 4 |") == sum(r["defense"] is not None for r in rows)


@pytest.mark.parametrize("name", ["runtime", "reconstruction", "adaptive"])
def test_a_study_of_rows_says_which_are_not_there(name: str, every_study: Studies) -> None:
    results = every_study[name]
    assert "Incomplete" not in render({**results, "missing": []}).markdown
    text = render({**results, "missing": ["first, spread 0.2", "second"]}).markdown
    there = len(results["rows"])
    assert text.split("\n\n")[1].startswith(f"**Incomplete: {there} of {there + 2} rows are there.**")
    assert "Not measured:\n\n- first, spread 0.2\n- second\n" in text


def test_seconds_are_as_fine_as_the_shares_beside_them_need(every_study: Studies) -> None:
    rows = [
        {"method": "ngp", "defense": None, "seconds": estimate(0.031234, 0.0001), "runs": 5},
        {"method": "ngp", "defense": "warp", "seconds": estimate(0.088888, 0.0001), "runs": 5},
    ]
    found = render({**every_study["runtime"], "rows": rows})
    assert "| 0.03123 [0.03113, 0.03133] |" in line(found, "NGP")
    assert "| 0.08889 [0.08879, 0.08899] |" in line(found, "NGP + WARP")
    assert "WARP, mean over 1 method, %: 184.6" in found.markdown
    assert "| 30.00 [29.50, 30.50] |" in line(render(every_study["runtime"]), "NGP")


def test_langevin_lines_of_a_figure_are_those_of_one_defence(study: Make, arm: Make) -> None:
    arms = [
        {**arm("ngp", defense, method="langevin"), "swept": {"epsilon": e}}
        for e in (1, 4)
        for defense in (None, "warp")
    ]
    found = render(study("langevin", arms))
    figure = found.figures["langevin.svg"].decode()
    for label in ("ours", "ours + WARP"):
        assert [figure.count(f" {label} at {e} ") for e in (1, 4)] == [3, 3]
    assert "Langevin + WARP, ε = 1" in found.markdown
    assert "Langevin + WARP, ε = 4" in found.markdown
