from typing import Any

import pytest

from warp_unlearning.report.opening import pair_opening, shadow_opening


def words(opening: Any) -> str:
    return " ".join(f"{lead} {text}" for lead, text in opening.parts)


def clean(data: dict[str, Any], verdict: str, auc: tuple[float, float, float]) -> None:
    area = dict(zip(("value", "low", "high"), auc, strict=True))
    for arm in data["arms"]:
        arm["all"] |= {"verdict": verdict, "auc": area}
        arm["slices"] = dict.fromkeys(arm["slices"])
        arm["gradient_test"] = arm["strongest"] = None


def test_it_says_what_was_audited_who_attacked_and_what_leaked(results):
    opening = shadow_opening(results)
    text = words(opening)
    assert [lead for lead, _ in opening.parts] == ["What was audited:", "Who attacked:", "What leaked:"]
    assert "6 ways of making a model (“small_resnet”, trained on “digits”)" in text
    assert "NGP, SCRUB and BT, without protection and with WARP" in text
    assert "48 times: 12 models" in text
    assert results.threat[0] in text
    assert opening.verdict == "leak"
    best = max(results.arms, key=lambda arm: arm.score.auc.strength.value)
    assert f"does best against NGP with no defence: shown one {'forgotten'}" in text
    area = best.score.auc
    cases = f"{100 * area.value:.0f} of 100 cases (95 % interval: {100 * area.low:.0f} to {100 * area.high:.0f}"
    assert cases in text
    assert "incomplete" not in text


def test_an_area_below_a_half_is_as_strong_as_its_mirror_image(data, read):
    clean(data, "leak", (0.1, 0.05, 0.2))
    assert "90 of 100 cases (95 % interval: 80 to 95; guessing: 50)" in words(shadow_opening(read(data)))


def test_no_leak_is_said_only_where_every_test_found_none(data, read):
    clean(data, "no leak found", (0.5, 0.49, 0.51))
    opening = shadow_opening(read(data))
    assert opening.verdict == "no leak found"
    assert opening.headline == "No trace of forgotten examples was found after 6 ways of forgetting"
    data["arms"][3]["slices"]["most memorised 1 %"] = data["arms"][3]["all"] | {"verdict": "leak"}
    opening = shadow_opening(read(data))
    assert opening.headline.startswith("Forgotten examples can be recognised after 1 of 6 ways")
    assert "In 1 way the leak shows only among the most memorised" in words(opening)


def test_too_small_is_not_a_pass(data, read):
    clean(data, "inconclusive", (0.5, 0.4, 0.6))
    opening = shadow_opening(read(data))
    assert opening.verdict == "inconclusive"
    assert "cannot rule out a leak" in opening.headline
    assert "which is not a pass" in words(opening)


def test_nothing_measured(data, read):
    clean(data, "inconclusive", (0.5, 0.4, 0.6))
    for arm in data["arms"]:
        arm["all"] = None
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


@pytest.mark.parametrize(
    ("verdict", "beyond", "says"),
    [
        ("leak", "leak", "reveals more than a model that was retrained"),
        ("no leak found", "no leak found", "reveals no more than"),
        ("inconclusive", None, "not a pass"),
    ],
)
def test_pairs(pair_data, read, verdict, beyond, says):
    opening = pair_opening(read(pair_data | {"verdict": verdict, "beyond_retrained": beyond}))
    assert opening.verdict == verdict
    assert says in words(opening)
    assert f"120 forgotten examples were compared with {pair_data['counts']['never seen']}" in words(opening)
    assert f"“{pair_data['strongest']}” did best" in words(opening)
