from copy import deepcopy
from dataclasses import asdict
from typing import Any

from warp_unlearning.report.opening import pair_opening, shadow_opening
from warp_unlearning.stats.area import strength_of
from warp_unlearning.stats.evidence import beyond_half, judge_shadows
from warp_unlearning.stats.intervals import Estimate
from warp_unlearning.stats.verdict import Evidence


def words(opening: Any) -> str:
    return " ".join(f"{lead} {text}" for lead, text in opening.parts)


def judged(data: dict[str, Any], auc: tuple[float, float, float], *, p: float = 0.5, drop: float = 0.001) -> None:
    """Give every arm one area, and the verdict on it."""
    area = Estimate(*auc)
    seen, error = Estimate(0.3, 0.2, 0.5), (area.high - area.low) / 4
    evidence = Evidence("U-LiRA", "new outputs", area, area, (), beyond_half(area), error, p, p, seen)
    drops = Estimate(drop, drop - 0.001, drop + 0.001)
    for arm in data["arms"]:
        arm["all"] |= {"auc": asdict(area)}
        arm["slices"] = dict.fromkeys(arm["slices"])
        arm["verdict"] = judge_shadows([evidence], shadows=12, drop=drops).as_json()
        arm["gradient_test"] = arm["strongest"] = None


def test_it_says_what_was_audited_who_attacked_and_what_leaked(results):
    opening = shadow_opening(results)
    text = words(opening)
    assert [lead for lead, _ in opening.parts] == ["What was audited:", "Who attacked:", "What leaked:"]
    assert "6 ways of making a model (“small_resnet”, trained on “digits”)" in text
    assert "NGP, SCRUB and BT, without protection and with WARP" in text
    assert "48 times: 12 models" in text
    assert results.threat[0] in text
    assert opening.verdict == "does not hold"
    best = max(results.arms, key=lambda arm: strength_of(arm.all.auc).value)
    assert f"does best against NGP with no defence: shown one {'forgotten'}" in text
    area = best.all.auc
    cases = f"{100 * area.value:.0f} of 100 cases (95 % interval: {100 * area.low:.0f} to {100 * area.high:.0f}"
    assert cases in text
    assert "incomplete" not in text


def test_an_area_below_a_half_is_as_strong_as_its_mirror_image(data, read):
    judged(data, (0.1, 0.05, 0.2), p=1e-6)
    assert "90 of 100 cases (95 % interval: 80 to 95; guessing: 50)" in words(shadow_opening(read(data)))


def test_holding_is_said_only_where_every_way_holds(data, read):
    judged(data, (0.5, 0.49, 0.51))
    opening = shadow_opening(read(data))
    assert (opening.verdict, opening.headline) == ("holds", "Forgetting holds in all 6 ways")
    one = deepcopy(data)
    judged(one, (0.6, 0.57, 0.63), p=1e-6)
    data["arms"][3] = one["arms"][3]
    opening = shadow_opening(read(data))
    assert (opening.verdict, opening.headline) == ("does not hold", "Forgetting does not hold in 1 of 6 ways")
    assert "After 1 of 6 ways, forgotten examples can be told" in words(opening)
    judged(data, (0.5, 0.49, 0.51), drop=0.05)
    opening = shadow_opening(read(data))
    assert opening.headline == "Forgetting does not hold in all 6 ways"
    assert "All 6 ways cost more test accuracy than is allowed" in words(opening)
    assert "In none of them did this attacker tell" in words(opening)


def test_too_small_is_not_a_pass(data, read):
    judged(data, (0.5, 0.4, 0.6))
    opening = shadow_opening(read(data))
    assert opening.verdict == "cannot be said"
    assert opening.headline == "It cannot be said that forgetting holds in all 6 ways"
    assert "which is not a pass" in words(opening)


def test_nothing_measured(data, read):
    judged(data, (0.5, 0.4, 0.6))
    for arm in data["arms"]:
        arm["all"] = arm["verdict"] = None
    opening = shadow_opening(read(data))
    assert (opening.headline, opening.verdict) == ("Nothing was measured", None)


def test_what_is_missing_is_in_the_first_paragraph(data, read):
    data["arms"][0]["missing"] = 2
    data["failures"] = [{"job": "unlearn 3", "reason": "diverged"}]
    data["stages"][1]["done"] -= 4
    data["stages"][1]["failed"] = 1
    lead, text = shadow_opening(read(data)).parts[-1]
    assert lead == "This audit is incomplete:"
    assert "2 unlearned models in 1 way could not be made" in text
    assert "1 job failed" in text
    assert "3 jobs were not done" in text


def test_an_audit_of_a_pair_of_version_1_never_passes(pair_data, read):
    results = read(pair_data)
    opening = pair_opening(results)
    assert opening.verdict == results.verdict.outcome != "holds"
    assert opening.headline.startswith("This forgetting ")
    assert results.verdict.sentence in words(opening)
    assert f"120 forgotten examples were compared with {pair_data['counts']['never seen']}" in words(opening)
    assert f"“{pair_data['strongest']}” did best" in words(opening)
    for row in pair_data["rows"]:
        row |= {"auc": {"value": 0.5, "low": 0.49, "high": 0.51}, "adjusted_p": 1.0}
        row["beyond"] = None if row["beyond"] is None else {"value": 0.0, "low": -0.01, "high": 0.01}
    quiet = read(pair_data).verdict
    assert (quiet.outcome, quiet.claims[1].reason) == ("cannot be said", "blind")


def test_what_two_models_show_beyond_a_retrained_one_is_judged_in_version_1(pair_data, read):
    for row in pair_data["rows"]:
        if row["beyond"] is not None and "both" in row["needs"]:
            row["retrained"] = {"value": 0.7, "low": 0.62, "high": 0.78}
            row["beyond"] = {"value": 0.25, "low": 0.2, "high": 0.3}
    for row in pair_data["rows"]:
        if row["name"] == pair_data["strongest"]:
            row["retrained"] = {"value": 0.3, "low": 0.22, "high": 0.38}
    assert (
        "of models retrained without the examples, the same attack names it in 70 of 100."
        in words(pair_opening(read(pair_data))).lower()
    )
    hidden = read(pair_data).verdict.claims[-1]
    assert (hidden.name, hidden.outcome, hidden.reason) == ("hidden", "does not hold", "recognised")
