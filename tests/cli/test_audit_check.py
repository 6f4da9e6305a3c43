"""`warp audit check`, `diff` and `plan`, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, norm

from warp_unlearning.cli.audit_check import lower_end
from warp_unlearning.data.files import to_json
from warp_unlearning.stats.area import area_difference, area_estimate, match, matched_area
from warp_unlearning.stats.evidence import beyond_half
from warp_unlearning.stats.intervals import Estimate, proportion
from warp_unlearning.stats.roc import Rate
from warp_unlearning.stats.verdict import Evidence, Needs, Verdict, judge

Warp = Callable[..., Any]
ROOT = Path(__file__).parents[2]
WORKS = Estimate(0.001, -0.002, 0.004)
VERSION_1 = ROOT / "tests" / "report" / "pair_0.1.json"


def attack(
    low: float, high: float, *, name: str = "confidence", needs: Needs = "new outputs", p: float = 0.5
) -> Evidence:
    area = Estimate((low + high) / 2, low, high)
    deviation = beyond_half(area)
    if needs.startswith("both"):
        deviation = Estimate(deviation.value, 0.0, deviation.high)
    return Evidence(name, needs, area, None, (), deviation, 0.01, p, p, Estimate(0.3, 0.2, 0.5))


def judged(*attacks: Evidence, drop: Estimate | None = WORKS, moved: float = 0.05) -> Verdict:
    facts = {
        "rows": 700,
        "unseen": 1400,
        "null": "drawn",
        "references": 2,
        "moved": (moved, 0.02 * bool(moved)),
        "tests": 3000,
    }
    return judge(attacks, drop=drop, **facts)  # type: ignore[arg-type]


def rates(**tpr: Estimate | None) -> list[dict[str, Any]]:
    return [
        {"name": name, "auc": asdict(Estimate(0.5, 0.48, 0.52)), "rates": [Rate(0.01, found, 1400).summary()]}
        for name, found in tpr.items()
    ]


def written(folder: Path, verdict: Verdict, rows: list[dict[str, Any]] | None = None) -> Path:
    """A run of an audit of a pair."""
    folder.mkdir(exist_ok=True)
    data = {
        "schema_version": 2,
        "kind": "pair",
        "verdict": verdict.as_json(),
        "rows": [
            {"attack": row["name"], "step": "naive", "needs": "new outputs", "original": None, "retrained": [], **row}
            for row in rows or []
        ],
        "strongest": "confidence",
        "strongest_strength": asdict(Estimate(0.5, 0.5, 0.52)),
        **{name: {} for name in ("not_tried", "models", "counts", "settings")},
        "digests": {"a": "b"},
        "threat": [],
        "notes": [],
        "date": "",
    }
    (folder / "results.json").write_text(json.dumps(to_json(data)))
    return folder


QUIET = (attack(0.48, 0.53), attack(0.5, 0.52, name="weights", needs="both weights"))
LOUD = (attack(0.6, 0.66, p=1e-6), attack(0.6, 0.7, name="weights", needs="both weights", p=1e-6))
FEW = {"confidence": Estimate(0.02, 0.01, 0.04), "weights": Estimate(0.03, 0.02, 0.05)}


@pytest.mark.parametrize(
    ("verdict", "threshold", "code", "said"),
    [
        (judged(*QUIET), (), 0, "forgotten       holds"),
        (judged(*LOUD), (), 1, "forgotten       does not hold"),
        (judged(*QUIET), ("--max-auc", "0.55", "--max-beyond", "0.03"), 0, "confidence: at most .530; .550 allowed"),
        (judged(*QUIET), ("--max-auc", "0.52"), 3, "max AUC         cannot be said"),
        (judged(*LOUD), ("--max-auc", "0.55"), 1, "confidence: at least .600; .550 allowed"),
        (judged(attack(0.34, 0.4, p=1e-6)), ("--max-auc", "0.55"), 1, "confidence: at least .600; .550 allowed"),
        (judged(*LOUD), ("--max-auc", "0.7"), 0, "max AUC         holds"),
        # An attack on both models is bounded by --max-beyond alone, at its mirrored lower end.
        (judged(QUIET[0], LOUD[1]), ("--max-auc", "0.55"), 0, "max AUC         holds"),
        (judged(*LOUD), ("--max-beyond", "0.08"), 1, "weights: at least .100; .080 allowed"),
        (judged(*LOUD), ("--max-beyond", "0.15"), 3, "weights: at most .200; .150 allowed"),
        (judged(QUIET[0]), ("--max-beyond", "0.5"), 3, "there is no retrained model to compare with"),
        (judged(*QUIET), ("--max-tpr", "0.06"), 0, "weights: at most .050; .060 allowed"),
        (judged(*QUIET), ("--max-tpr", "0.005"), 1, "weights: at least .0"),
        (judged(*QUIET), ("--max-tpr", "0.03"), 3, "max TPR at 1 %  cannot be said"),
        # Whatever the thresholds, the model must have moved and still work.
        (judged(*QUIET, moved=0.0), ("--max-auc", "1"), 1, "moved           does not hold"),
        (judged(*QUIET, drop=Estimate(0.03, 0.025, 0.035)), ("--max-auc", "1"), 1, "works           does not hold"),
        (judged(*QUIET, drop=None), ("--max-auc", "1"), 3, "works           cannot be said"),
    ],
)
def test_a_gate_passes_on_holds_alone(
    warp: Warp, tmp_path: Path, verdict: Verdict, threshold: tuple[str, ...], code: int, said: str
) -> None:
    run = written(tmp_path / "run", verdict, rates(**FEW))
    answer = warp("audit", "check", run, *threshold)
    assert (answer.code, answer.err) == (code, "")
    assert said in answer.out
    assert answer.out.splitlines()[-1].endswith(f"(exit {code})")
    found = json.loads(warp("audit", "check", run / "results.json", *threshold, "--json").out)
    assert found["exit"] == code
    assert found["outcome"] == {0: "holds", 1: "does not hold", 3: "cannot be said"}[code]


def test_a_bound_that_the_original_keeps_too_tests_nothing(warp: Warp, tmp_path: Path) -> None:
    def known(*originals: float) -> Verdict:
        areas = [Estimate(value, value - 0.02, value + 0.02) for value in originals]
        return judged(*(replace(attack(0.48, 0.53, name=f"{i}"), original=area) for i, area in enumerate(areas)))

    for verdict, bound, code in ((known(0.693, 0.3), "0.9", 3), (known(0.693, 0.55), "0.6", 0), (known(0.3), "0.6", 0)):
        run = written(tmp_path / "run", verdict)
        answer = warp("audit", "check", run, "--max-auc", bound)
        blind = "max AUC         cannot be said the original is within .900 too, so the bound tests nothing"
        assert (answer.code, blind in answer.out) == (code, code == 3)
        assert f"the audit itself: {verdict.sentence}" in answer.out.splitlines()
        found = warp("audit", "check", run, "--max-auc", bound, "--json").json()
        assert found["claims"][-1]["reason"] == ("blind" if code else "within")
        assert found["audit"] == {"": verdict.sentence}
    # What is beyond the bound is said, whatever the original was.
    loud = judged(*(replace(each, original=Estimate(0.5, 0.45, 0.55)) for each in LOUD[:1]))
    assert warp("audit", "check", written(tmp_path / "run", loud), "--max-auc", "0.55").code == 1


def test_rates_that_nothing_resolves_pass_nothing(warp: Warp, tmp_path: Path) -> None:
    run = written(tmp_path / "run", judged(*QUIET), rates(confidence=None))
    answer = warp("audit", "check", run, "--max-tpr", "1")
    assert answer.code == 3
    assert "1,400 unseen observations cannot resolve it; 1,000 are needed" in answer.out
    refused = warp("audit", "check", run, "--max-tpr", "1", "--at-fpr", "0.02")
    assert (refused.code, refused.out) == (2, "")
    assert "no rate at a false-positive rate of 0.02; it has [0.01]" in refused.err


def test_a_rate_of_one_is_corrected_for_the_number_of_attacks() -> None:
    for n in (8, 20):
        exact = beta.ppf(0.025 / 23, n, 1)
        assert lower_end(proportion(n, n), 0.95, 23) == pytest.approx(exact, rel=1e-9)
    found = Estimate(0.5, 0.4, 0.6)
    assert lower_end(found, 0.95, 1) == pytest.approx(0.4)
    longer = norm.isf(0.025 / 5) / norm.isf(0.025)
    assert lower_end(found, 0.95, 5, linear=True) == pytest.approx(0.5 - 0.1 * longer)
    logit = np.log(0.4 / 0.6) * longer
    assert lower_end(found, 0.95, 5) == pytest.approx(1 / (1 + np.exp(-logit)))


@pytest.mark.parametrize(("outcome", "code"), [("holds", 0), ("does not hold", 1), ("cannot be said", 3)])
def test_other_results_are_held_against_their_own_verdict(warp: Warp, tmp_path: Path, outcome: str, code: int) -> None:
    verdict = {0: judged(*QUIET), 1: judged(*LOUD), 3: judged(replace(QUIET[0], seen=Estimate(0.0, -0.1, 0.5)))}[code]
    accuracy = {"forgotten": 0.5, "unseen": 0.5, "retained": 0.9, "test": 0.8}
    data = {
        "schema_version": 2,
        "kind": "unlearn",
        "request": {"how": "a list", "asked": 1, "found": 1, "copies": 0, "first": [3], "digest": "a"},
        "method": {"name": "ngp", "options": {}, "settings": "published"},
        "defense": None,
        "before": accuracy,
        "after": accuracy,
        "teleports": None,
        **dict.fromkeys(("retained", "seed", "updates", "seconds", "cpu_seconds", "requests"), 1),
        "original": "b",
        "unlearned": "c",
        "verdict": verdict.as_json(),
    }
    (tmp_path / "unlearn.json").write_text(json.dumps(to_json(data)))
    answer = warp("audit", "check", tmp_path / "unlearn.json")
    assert (answer.code, verdict.outcome) == (code, outcome)


def test_audits_of_version_1_never_pass(warp: Warp) -> None:
    for threshold in ((), ("--max-auc", "1"), ("--max-beyond", "1")):
        assert warp("audit", "check", VERSION_1, *threshold).code in (1, 3)
    stored = warp("audit", "check", ROOT / "results" / "small" / "digits", "--json")
    found = json.loads(stored.out)
    assert (stored.code, {claim["arm"] for claim in found["claims"]} >= {"ngp", "salun + warp"}) == (1, True)
    assert {claim["name"] for claim in found["claims"]} == {"works", "forgotten"}
    one = warp("audit", "check", ROOT / "results" / "small" / "digits", "--arm", "ngp", "--max-auc", "0.99")
    assert (one.code, "ngp: max AUC" in one.out, "scrub" in one.out) == (3, True, False)
    unknown = warp("audit", "check", ROOT / "results" / "small" / "digits", "--arm", "ngq")
    assert (unknown.code, "has no arm 'ngq'" in unknown.err) == (2, True)


def test_what_cannot_be_checked_is_refused(warp: Warp, tmp_path: Path) -> None:
    run = written(tmp_path / "run", judged(*QUIET), rates(**FEW))
    refused = warp("audit", "check", run, "--max-auc", "0.4")
    assert (refused.code, refused.out) == (2, "")
    assert "the largest AUC is 0.4" in refused.err
    data = json.loads((run / "results.json").read_text())
    changed = data | {"verdict": data["verdict"] | {"outcome": "does not hold"}}
    cases = {
        "version.json": (
            json.dumps(data | {"schema_version": 99}),
            "has schema version 99; this program reads 1 and 2",
        ),
        "kind.json": ('{"schema_version": 2, "kind": "cake"}', "kind is 'cake'"),
        "broken.json": ("{", "is cut short or damaged"),
        "changed.json": (json.dumps(changed), "the file was changed by hand"),
        "list.json": ("[]", "holds a list, no results"),
    }
    for name, (text, message) in cases.items():
        (tmp_path / name).write_text(text)
        answer = warp("audit", "check", tmp_path / name)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
    assert "there is no results file" in warp("audit", "check", tmp_path / "none").err


def test_what_changed_between_two_audits(warp: Warp, tmp_path: Path) -> None:
    draw, classes = np.random.default_rng(20), np.arange(150) % 3
    rows = match(np.arange(150) < 50, classes)
    index = {"forget_index": np.arange(50), "test_index": np.arange(100), "classes": classes}
    folders, scores = [], []
    for name, more in (("one", {}), ("two", {"weights": draw.normal(size=150)})):
        scores.append({"confidence": draw.normal(size=150) + rows.forgot} | more)
        listed = [
            {"name": attack, "auc": asdict(area_estimate(matched_area(x, rows), rows)[0]), "rates": []}
            for attack, x in scores[-1].items()
        ]
        folders.append(written(tmp_path / name, judged(*(QUIET if name == "one" else LOUD)), listed))
        np.savez(tmp_path / name / "scores.npz", **index, **scores[-1])
    answer = warp("audit", "diff", *folders)
    assert answer.code == 0
    assert (
        "verdict: holds: works, not recognised, not recognised -> does not hold: recognised, recognised" in answer.out
    )
    assert "only in the second: weights" in answer.out
    found = json.loads(warp("audit", "diff", *folders, "--json").out)
    areas = [matched_area(each["confidence"], rows) for each in scores]
    (change,) = found["changes"]
    assert (change["name"], found["paired"]) == ("confidence", True)
    assert change["difference"] == pytest.approx(asdict(area_difference(areas[1], areas[0], rows)))
    assert change["difference"]["value"] == pytest.approx(change["second"]["value"] - change["first"]["value"])
    same = json.loads(warp("audit", "diff", folders[0], folders[0], "--json").out)
    assert same["facts"] == {}
    alone = warp("audit", "diff", folders[0] / "results.json", folders[1])
    assert "differences have no interval" in alone.out
    old = json.loads(warp("audit", "diff", VERSION_1, folders[0], "--json").out)
    assert [change["name"] for change in old["changes"]] == ["confidence"]
    assert "digests.a" in old["facts"]


def test_a_plan_in_words_and_as_json(warp: Warp) -> None:
    asked = ("--points", "5000", "--half-width", "0.01", "--training-seconds", "7", "--unlearning-seconds", "1")
    answer = warp("audit", "plan", *asked, "--fpr", "0.001")
    assert answer.code == 0
    plan = json.loads(warp("audit", "plan", *asked, "--fpr", "0.001", "--json").out)
    assert answer.out.startswith(f"{plan['shadows']} shadows, {plan['models']} unlearned models")
    assert plan["negatives"] >= plan["negatives_needed"] == 10_000
    refused = warp("audit", "plan", *asked, "--fpr", "2")
    assert (refused.code, refused.out) == (2, "")
