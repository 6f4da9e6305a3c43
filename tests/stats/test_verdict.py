from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from warp_unlearning.errors import InputError
from warp_unlearning.stats.area import area_estimate, match, matched_area, spread_of
from warp_unlearning.stats.evidence import AttackScores, Outputs, alone, beside, judge_outputs
from warp_unlearning.stats.exchange import Rise
from warp_unlearning.stats.intervals import Estimate
from warp_unlearning.stats.roc import Influence
from warp_unlearning.stats.verdict import (
    Evidence,
    Needs,
    Null,
    Verdict,
    judge,
    p_value,
    rows_needed,
    share,
    signed,
)

RISE = Rise(0.95, 0.985, 0.893)


def evidence(
    low: float,
    high: float,
    *,
    adjusted: float = 0.5,
    error: float = 0.014,
    seen: tuple[float, float] = (0.2, 0.25),
    needs: Needs = "new outputs",
    attack: str = "confidence",
) -> Evidence:
    value = (low + high) / 2
    area = Estimate(0.5 + value, 0.5 + low, 0.5 + high)
    known = Estimate(seen[1], seen[0], 0.5)
    return Evidence(attack, needs, area, None, (), Estimate(value, low, high), error, adjusted, adjusted, known)


def judged(*attacks: Evidence, null: Null = "unseen", **facts: Any) -> Verdict:
    """The verdict of the base case, with what is given changed."""
    given: dict[str, Any] = {"rows": 700, "unseen": 1400, "moved": (0.05, 0.02), "tests": 1400}
    given["drop"] = Estimate(0.0035, -0.005, 0.012)
    return judge(attacks, null=null, **given | facts)


SAME = evidence(-0.02, 0.04)
ABOVE = evidence(0.07, 0.13, adjusted=0.001)
HIDDEN = evidence(0, 0.18, adjusted=0.001, needs="both weights", attack="weights")
UNSEEN_HIDDEN = evidence(0, 0.03, needs="both weights", attack="weights")
TWO = {"null": "retrained", "references": 2}
FAKE = "retrained.pt gives the original's outputs"


@pytest.mark.parametrize(
    ("attacks", "facts", "code", "reason"),
    [
        ([SAME], {}, 0, "not recognised"),
        ([replace(SAME, adjusted=0.001)], {}, 0, "not recognised"),
        ([ABOVE], {}, 3, "differs from unseen rows"),
        ([ABOVE], {"null": "drawn"}, 1, "recognised"),
        ([evidence(-0.13, -0.07, adjusted=0.001)], {"null": "drawn"}, 1, "over-forgotten"),
        ([evidence(-0.13, -0.07, adjusted=0.001)], {}, 3, "differs from unseen rows"),
        ([evidence(-0.02, 0.04, seen=(-0.01, 0.04))], {}, 3, "blind"),
        ([evidence(-0.02, 0.04, error=0.0128, seen=(0.01, 0.09))], {}, 3, "near the margin"),
        ([evidence(-0.06, 0.08, error=0.035)], {}, 3, "too few rows"),
        ([evidence(0.01, 0.06, adjusted=0.07, error=0.0128)], {}, 3, "near the margin"),
        ([SAME, evidence(-0.06, 0.08, error=0.035)], {}, 3, "too few rows"),
        ([SAME], {"risen": RISE}, 1, "learned more"),
        ([SAME], {"risen": RISE, "null": "drawn"}, 3, "known better than before"),
        ([SAME], {"risen": RISE, "null": "retrained", "references": 2}, 0, "not recognised"),
        ([SAME], {"closer": True}, 3, "known better than before"),
        ([ABOVE], {"closer": True}, 3, "differs from unseen rows"),
        ([SAME], {"drop": Estimate(0.03, 0.021, 0.04)}, 1, "harmed"),
        ([SAME], {"drop": Estimate(0.0155, 0.01, 0.021)}, 3, "too few test rows"),
        ([SAME], {"drop": None}, 3, "no test rows"),
        ([], {"null": "ours", "drop": Estimate(0.035, -0.01, 0.08)}, 0, "forgotten by construction"),
        ([], {"null": "ours", "drop": Estimate(0.11, 0.021, 0.2)}, 1, "harmed"),
        ([], {"null": "ours", "drop": Estimate(0.155, 0.01, 0.3)}, 3, "too few test rows"),
        ([], {"null": "ours", "drop": None}, 3, "no test rows"),
        ([], {"null": "ours", "moved": (0.0, 0.0)}, 0, "forgotten by construction"),
        ([SAME], {"moved": (0.0001, 0.0)}, 1, "nothing moved"),
        ([evidence(0.22, 0.28, adjusted=2e-4)], {"moved": (0.0001, 0.002)}, 3, "differs from unseen rows"),
        ([SAME], TWO, 0, "not recognised"),
        ([SAME], {"null": "retrained", "references": 1}, 3, "one reference"),
        ([SAME], {"null": "retrained", "references": 2, "fake": FAKE}, 3, "no reference"),
        ([evidence(0.17, 0.23, seen=(-0.01, 0.02))], TWO, 3, "blind"),
        ([evidence(0.17, 0.23, seen=(-0.01, 0.09), adjusted=0.001, error=0.05)], TWO, 3, "too few rows"),
        ([ABOVE], {"null": "retrained", "references": 1}, 1, "recognised"),
        ([ABOVE], {"null": "retrained", "references": 1, "moved": (0.0, 0.0), "fake": FAKE}, 1, "nothing moved"),
        ([SAME, HIDDEN], {"null": "drawn", "references": 2}, 1, "recognised"),
        ([SAME, UNSEEN_HIDDEN], {"null": "drawn", "references": 1}, 3, "one reference"),
        ([SAME, UNSEEN_HIDDEN], {"null": "drawn", "references": 2}, 0, "not recognised"),
        ([SAME, UNSEEN_HIDDEN], {"null": "drawn", "references": 2, "fake": FAKE}, 3, "no reference"),
        ([], {}, 3, "every score is equal"),
        ([], {"rows": 0, "unseen": 0}, 3, "no unseen rows"),
    ],
)
def test_golden_cases(attacks: list[Evidence], facts: dict[str, Any], code: int, reason: str) -> None:
    found = judged(*attacks, **facts)
    assert (found.exit, reason in found.reasons) == (code, True), found.lines
    assert found.lines[-1] == found.sentence
    assert found.sentence.startswith(found.outcome)
    assert found.sentence.endswith(f"(exit {code})")
    json.dumps(found.as_json(), allow_nan=False)


def test_rows_needed() -> None:
    without = ((1, 200, 435), (20, 200, 476), (150, 3000, 454), (700, 1400, 648))
    assert all(rows_needed(rows, unseen) == needed for rows, unseen, needed in without)
    assert (rows_needed(1, 200, error=np.inf), rows_needed(700, 1400, error=0.035)) == (435, 4446)
    assert [rows_needed(700, 1400, margin=margin) for margin in (0.02, 0.1)] == pytest.approx([4050, 162], abs=10)
    assert judged(SAME, drop=Estimate(0.005, -0.011, 0.021), tests=500).claims[1].rows_needed == 655


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            judged(SAME, moved=(0.0001, 0.0)),
            "outputs differ by .0001 on average and no answer changed; what was known of these rows still is",
        ),
        (
            judged(SAME, drop=Estimate(0.03, 0.022, 0.038), accuracy=(0.893, 0.863)),
            "test accuracy .893 → .863, down 3.0 points [2.2, 3.8]; 2.0 allowed",
        ),
        (
            judged(SAME, drop=Estimate(-0.002, -0.009, 0.005), accuracy=(0.893, 0.895, 0.89, 0.888)),
            "test accuracy .893 → .895, up .2 points [-.5, .9]; retrained .890, .888",
        ),
        (
            judged(SAME, drop=Estimate(0.005, -0.011, 0.021), tests=500),
            "down .5 points [-1.1, 2.1]; about 655 test rows would decide",
        ),
        (
            judged(null="ours", rows=150),
            "trained from fresh weights without the 150 rows",
        ),
        (judged(SAME, risen=RISE), "right on .985 of the rows, .950 before; unseen rows of their classes .893"),
        (judged(ABOVE, null="drawn"), "confidence: area .600 [.570, .630], p .001"),
        (
            judged(ABOVE),
            "confidence: gap +.100 [+.070, +.130], p .001: still known, or easier by nature; retrained models tell "
            "(--retrained), or --drawn if the rows were drawn at random",
        ),
        (
            judged(evidence(-0.06, 0.08, error=0.035)),
            "confidence [-.060, +.080] at 700 rows; about 4,446 would decide; this request has no more, so retraining "
            "or a shadow audit can",
        ),
        (judged(SAME, replace(SAME, attack="accuracy")), "by confidence, accuracy: within .050 of unseen rows"),
        (judged(SAME, null="retrained", references=2), "by confidence: within .050 of 2 retrained models"),
        (
            judged(SAME, HIDDEN, null="drawn", references=2),
            "weights: the weights show the rows by .09 more than retraining does [+.000, +.180], p .001",
        ),
        (judged(SAME, null="retrained", fake=FAKE), FAKE),
    ],
)
def test_sentences(found: Verdict, sentence: str) -> None:
    assert sentence in [claim.sentence for claim in found.claims], [claim.sentence for claim in found.claims]


def test_what_a_verdict_assumes_is_printed() -> None:
    source = "unseen rows come from the source of the training rows"
    assert judged(SAME).assumes[0] == source
    assert "hard rows that are half forgotten look so too" in judged(SAME).assumes[1]
    assert judged(SAME, null="drawn", word="--forget-fraction").assumes[1].endswith("by --forget-fraction")
    assert judged(SAME, null="drawn").assumes[1].endswith("by your word")
    own = replace(SAME, retrained=(Estimate(0.512, 0.48, 0.54), Estimate(0.498, 0.47, 0.53)))
    with_two = judged(own, null="retrained", references=2)
    assert with_two.assumes[1].endswith("by your word; their own areas: confidence .512, .498")
    assert judged(null="ours", word="FILE.py:train").assumes == (source, "trained without these rows by FILE.py:train")
    assert judged(SAME, left=12).assumes[-1] == "says nothing of 12 rows whose class has no unseen row"
    assert f"assumes   {source}" in with_two.lines
    assert "hidden    not judged: no attack saw both models" in with_two.lines
    assert "hidden    not judged: retraining changes these rows too" in judged(SAME).lines
    assert not [line for line in judged(null="ours").lines if line.startswith("hidden")]


def test_numbers_as_they_are_printed() -> None:
    assert [share(x) for x in (0.893, 1.0, -0.05, 0.0, -0.0001)] == [".893", "1.000", "-.050", ".000", ".000"]
    assert [signed(x) for x in (0.078, -0.02, 0.0)] == ["+.078", "-.020", "+.000"]
    assert [p_value(x) for x in (0.03, 3e-4, 0.002, 1.0)] == [".03", "3e-4", ".002", "1.00"]


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"null": "guess"}, {"margin": 0}, {"margin": -1}, {"level": 1.0}, {"max_drop": 0}, {"max_drop": 2}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} .*: give"):
            judged(SAME, **wrong)


def test_a_margin_wider_than_what_is_known_is_named() -> None:
    known = evidence(-0.02, 0.04, seen=(0.1, 0.2))
    found = judged(replace(known, original=Estimate(0.7, 0.6, 0.8)), **TWO, margin=0.3)
    assert found.reasons == ("blind",)
    assert "the margin .300 is wider than what the original shows: confidence .200" in found.sentence
    both = replace(UNSEEN_HIDDEN, seen=Estimate(0.2, 0.1, 0.5))
    assert "wider than what retraining leaves: weights .200" in judged(SAME, both, **TWO, margin=0.3).sentence


# ---------------------------------------------------------------------------------------------- from scores


def model(rng: np.random.Generator, shift: np.ndarray, base: np.ndarray) -> Outputs:
    """A model with two outputs, right where the confidence is positive."""
    sure = base + 0.4 * rng.normal(size=base.size) + shift
    p = 1 / (1 + np.exp(-sure))
    return Outputs(sure, sure > 0, np.stack([p, 1 - p], axis=1))


class World:
    """Rows and an original that knows the forgotten ones."""

    def __init__(self, forgotten: int = 700, unseen: int = 1400, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.forgot = np.arange(forgotten + unseen) < forgotten
        self.classes = np.arange(forgotten + unseen) % 5
        self.base = 1.5 + self.rng.normal(size=forgotten + unseen)
        self.original = self.model(1.0)

    def model(self, known: float) -> Outputs:
        return model(self.rng, known * self.forgot, self.base)

    def judge(self, new: Outputs, **how: Any) -> Verdict:
        how = {"forgot": self.forgot, "classes": self.classes} | how
        return judge_outputs(self.original, new, generator=np.random.default_rng(1), draws=499, **how)


def test_models_and_their_verdicts() -> None:
    world = World()
    retrained, other, leak = world.model(0.0), world.model(0.0), world.model(0.6)
    assert world.judge(world.original).reasons == ("nothing moved",)
    assert "forgotten" in [c.name for c in world.judge(retrained).claims]
    assert world.judge(leak).claims[-1].reason == "differs from unseen rows"
    assert world.judge(leak, drawn=True).exit == 1
    two = {"one.pt": retrained, "two.pt": other}
    assert world.judge(leak, references=two).exit == 1
    assert world.judge(leak, references=two).evidence[0].retrained[1].value == pytest.approx(0.5, abs=0.05)
    assert world.judge(leak, references=two | {"old.pt": world.original}).claims[-1].sentence == (
        "old.pt gives the original's outputs"
    )
    assert world.judge(retrained, ours=True).evidence == ()
    nulls: list[dict[str, Any]] = [{}, {"references": two}, {"references": two, "drawn": True}, {"ours": True}]
    assert [world.judge(leak, **null).null for null in nulls] == ["unseen", "retrained", "drawn", "ours"]
    assert world.judge(retrained, drawn=True) == world.judge(retrained, drawn=True)


def test_the_evidence_is_that_of_its_parts() -> None:
    world = World(60, 200)
    new, before = world.model(0.3), world.original.confidence
    found, rows = world.judge(new), match(world.forgot, world.classes)
    assert [e.attack for e in found.evidence] == ["confidence", "accuracy"]
    assert found.evidence[0].original == area_estimate(matched_area(before, rows), rows)[0]
    attacks = [AttackScores(f"{i}", "new outputs", world.model(0.0).confidence, before) for i in range(4)]
    first = alone(attacks, rows, generator=world.rng, draws=99)[0]
    assert first.area == area_estimate(matched_area(attacks[0].new, rows), rows)[0]
    # What an attack can see is corrected for all attacks.
    assert first.seen.low == pytest.approx(
        area_estimate(matched_area(before, rows), rows, level=1 - 0.05 / 4)[0].low - 0.5
    )


@pytest.mark.parametrize("needs", ["new outputs", "both outputs"])
def test_evidence_beside_references_is_that_of_paired_tests(needs: Needs) -> None:
    world = World(120, 240)
    rows, hidden = match(world.forgot, world.classes), needs == "both outputs"
    scores = [world.model(known).confidence for known in (0.9, 0.1, 0.4)]
    attack = AttackScores("loss", needs, scores[0], None if hidden else world.original.confidence, scores[1:])
    other = AttackScores("noise", needs, world.rng.normal(size=360), attack.original, scores[1:])
    found = beside([attack, other], rows)[0]
    areas = [matched_area(s, rows) for s in scores]
    nothing = Influence(0.5, np.zeros(120), np.zeros(240))
    before = nothing if hidden else matched_area(attack.original, rows)
    ends, ps, errors, seen = [], [], [], []

    def spread(found: Influence) -> tuple[float, float]:
        of = spread_of(found, rows)
        return of.error, of.freedom

    for reference in areas[1:]:
        d = areas[0].value - reference.value
        error, free = spread(areas[0] - reference)
        ends.append((d - t.isf(0.025, free) * error, d + t.isf(0.025, free) * error))
        ps.append(t.sf((d - 0.05 * 1.5) / error, free))
        errors.append(error)
        power, free = spread(reference - before)
        seen.append(abs(reference.value - before.value) - t.isf(0.025 / 2, free) * power)
    assert found.deviation.low == pytest.approx(0 if hidden else min(low for low, _ in ends))
    assert found.deviation.high == pytest.approx(max(high for _, high in ends))
    assert found.deviation.value == pytest.approx(areas[0].value - np.mean([a.value for a in areas[1:]]))
    assert (found.p, found.error, found.seen.low) == pytest.approx((max(ps), max(errors), min(seen)))
    assert found.adjusted == pytest.approx(2 * found.p)
    between = AttackScores("between", "new outputs", scores[2], world.original.confidence, [scores[0], scores[1]])
    assert beside([between], rows)[0].p == 1


def test_confidence_that_rose_keeps_a_verdict_from_holding() -> None:
    world = World(1500, 3000)
    world.original = world.model(0.3)
    world.original = replace(world.original, confidence=world.original.confidence - 0.5 * world.forgot)
    rose = world.model(0.0)
    seen = AttackScores("seen", "new outputs", world.model(0.0).confidence, world.model(1.5).confidence)
    assert world.judge(rose, attacks=[seen]).claims[-1].reason == "known better than before"
    fell = replace(rose, confidence=rose.confidence - 0.4 * world.forgot)
    assert world.judge(fell, attacks=[seen]).claims[-1].reason != "known better than before"


def test_one_row_never_holds_and_can_be_recognised_where_it_was_drawn() -> None:
    for seed in range(20):
        world = World(1, 300, seed)
        retrained = world.judge(world.model(0.0), drawn=True, classes=np.zeros(301))
        assert retrained.exit != 0
        assert retrained.evidence[0].deviation == Estimate(retrained.evidence[0].area.value - 0.5, -0.5, 0.5)
        assert retrained.as_json()["evidence"][0]["error"] is None
    leak = world.model(9.0)
    assert "recognised" in world.judge(leak, drawn=True, classes=np.zeros(301)).reasons
    assert world.judge(leak, classes=np.zeros(301)).claims[-1].outcome == "cannot be said"


def test_classes_without_unseen_rows_leave_the_comparison() -> None:
    world = World()
    classes = np.where(world.forgot & (np.arange(2100) < 12), 9, world.classes)
    found = world.judge(world.model(0.0), classes=classes)
    assert (found.rows, found.unseen) == (688, 1400)
    assert found.assumes[-1].startswith("says nothing of 12 rows")
    none = World(50, 0)
    assert none.judge(none.model(0.0)).reasons == ("no test rows", "no unseen rows")
    nobody = world.judge(world.model(0.0), classes=np.where(world.forgot, 9, world.classes))
    assert [c.reason for c in nobody.claims] == ["moved", nobody.claims[1].reason, "no unseen rows"]


def test_test_rows_of_a_class_that_was_forgotten_whole_do_not_count_for_accuracy() -> None:
    world = World()
    forgot = world.forgot & (world.classes == 2)
    kept = world.forgot & (world.classes != 2)
    rows = np.flatnonzero(forgot | ~(world.forgot | kept))
    unlearned = model(world.rng, -6.0 * (world.classes == 2), world.base)

    def cut(m: Outputs) -> Outputs:
        return Outputs(m.confidence[rows], m.correct[rows], m.probabilities[rows])

    for gone, reason in (((), "harmed"), ((2,), "works")):
        found = judge_outputs(
            cut(world.original),
            cut(unlearned),
            forgot=forgot[rows],
            classes=world.classes[rows],
            gone=gone,
            drawn=True,
            generator=world.rng,
            draws=499,
        )
        assert found.claims[1].reason == reason


def test_attacks_without_two_unequal_scores_are_void() -> None:
    world = World(60, 200)
    silent = Outputs(np.full(260, 2.0), np.full(260, True), world.model(0.0).probabilities)
    found = world.judge(silent)
    assert found.evidence == ()
    assert found.claims[-1].reason == "every score is equal"
    always_right = world.model(0.0)
    always_right = Outputs(always_right.confidence, np.full(260, True), always_right.probabilities)
    assert [e.attack for e in world.judge(always_right).evidence] == ["confidence"]


def test_attacks_on_both_models_are_judged_beside_references_only() -> None:
    world = World(300, 600)
    new, reference = world.model(0.0), world.model(0.0)
    trace, noise = 1.0 * world.forgot, [world.rng.normal(size=900) for _ in range(3)]
    drift = AttackScores("drift", "both outputs", noise[0] + 2 * trace, None, [n + 0.4 * trace for n in noise[1:]])
    assert [c.name for c in world.judge(new, drawn=True, attacks=[drift]).claims][-1] == "forgotten"
    found = world.judge(new, drawn=True, attacks=[drift], references={"a": reference, "b": reference})
    assert found.claims[-1].reason == "recognised"
    assert found.evidence[-1].claim == "hidden"
    assert found.evidence[-1].original is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_no_numbers_are_refused_with_row_and_model(bad: float) -> None:
    world = World(20, 50)
    broken = world.model(0.0)
    broken.confidence[17] = bad
    with pytest.raises(InputError, match="the attack confidence gives row 17 of the new model a score that is no fini"):
        world.judge(broken)
    with pytest.raises(InputError, match="gives row 17 of retrained model 1 a score"):
        world.judge(world.model(0.0), references={"other.pt": broken})
    with pytest.raises(InputError, match="the attack loss gives row 17 of retrained model 1 a score that is no finite"):
        AttackScores("loss", "new outputs", np.zeros(70), np.zeros(70), [broken.confidence])


def test_arrays_that_do_not_fit_are_refused() -> None:
    world = World(20, 50)
    with pytest.raises(InputError, match="give one entry a row"):
        world.judge(world.original, classes=world.classes[:-1])
    two = world.model(0.0)
    with pytest.raises(InputError, match="the new model has 1 outputs, the original 2"):
        world.judge(Outputs(two.confidence, two.correct, two.probabilities[:, :1]))
    with pytest.raises(InputError, match="none of the 70 rows is forgotten"):
        world.judge(world.original, forgot=np.zeros(70, dtype=bool))
    with pytest.raises(InputError, match="made on no retrained model"):
        beside([AttackScores("x", "new outputs", np.arange(70), np.arange(70))], match(world.forgot, world.classes))
    for original, needs in ((None, "new outputs"), (np.arange(70), "both outputs")):
        with pytest.raises(InputError, match="give scores on the original"):
            AttackScores("x", needs, np.arange(70), original)
