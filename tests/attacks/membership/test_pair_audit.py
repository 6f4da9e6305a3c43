"""The pair audit on networks of which it is known what they leak."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from warp_unlearning import ChangeOfBasis, teleport
from warp_unlearning.attacks.membership.gradient_difference import gradient_difference
from warp_unlearning.attacks.membership.pair_attacks import Attack, PairAttacker
from warp_unlearning.attacks.membership.pair_audit import PairAuditor, audit_pair
from warp_unlearning.attacks.membership.pair_report import PairAudit, overall, rows_of, strongest_of
from warp_unlearning.attacks.membership.update_alignment import update_alignment
from warp_unlearning.attacks.undo import Held, difference, inputs, make_pre_step
from warp_unlearning.attacks.undo.inputs import input_spectra
from warp_unlearning.conformance.planted_leak import (
    PlantedProblem,
    forgotten_too_well,
    planted_problem,
    stepped_up,
)
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.training.scoring import logit_confidence, logits


@pytest.fixture(scope="module")
def problem() -> PlantedProblem:
    return planted_problem(20)


def audited(problem: PlantedProblem, one: nn.Module, other: nn.Module, **settings: Any) -> PairAudit:
    given = {"forget": problem.forget, "test": problem.test, "retain": problem.retain, "steps": ("naive",)}
    return audit_pair(one, other, **(given | settings))


def test_a_model_that_forgot_nothing_is_found_by_attacks_on_it_alone(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, stepped_up(problem.original, problem.retain, length=0.01))
    assert found.verdict == "leak"
    for name, at_least in (("confidence", 0.9), ("gradient norm", 0.9), ("gradient difference", 0.8)):
        assert found.row(name).strength.value > at_least
        assert found.row(name).verdict == "leak"
    assert found.strongest_strength.value == max(row.strength.value for row in found.rows)
    assert found.strongest_strength.low < found.row(found.strongest).strength.low


def test_one_that_forgot_too_well_is_found_by_what_changed(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, forgotten_too_well(problem))
    assert found.strongest == "confidence drop"
    assert found.strongest_strength.low > 0.9


def test_an_area_is_that_of_the_scores_it_names(problem: PlantedProblem) -> None:
    after = forgotten_too_well(problem)
    found = audited(problem, problem.original, after)
    forgotten = problem.forget.select(torch.from_numpy(found.forget_index))
    never = problem.test.select(torch.from_numpy(found.test_index))
    scores = []
    for part in (forgotten, never):
        phi = [logit_confidence(logits(m, part).numpy(), part.y.numpy()) for m in (problem.original, after)]
        scores.append(phi[0] - phi[1])
    truth = [1] * len(forgotten) + [0] * len(never)
    assert found.row("confidence drop").auc.value == pytest.approx(roc_auc_score(truth, np.concatenate(scores)))
    assert found.counts == {"forgotten": 100, "never seen": len(never), "background": 432, "probes": 400}


def test_two_retrained_models_tell_nothing(problem: PlantedProblem) -> None:
    found = audited(problem, *problem.retrained, steps=None)
    assert len(found.rows) == 23
    assert found.verdict != "leak"
    assert found.strongest_strength.low == 0.5
    assert min(row.adjusted_p for row in found.rows) > 0.05


def test_a_retrained_model_shows_what_even_retraining_reveals(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, problem.retrained[0], retrained=problem.retrained)
    drop = found.row("confidence drop")
    assert drop.auc.value > 0.9
    # The audited model is the reference, so nothing goes beyond it.
    assert drop.retrained == drop.auc
    assert drop.beyond is not None
    assert (drop.beyond.value, found.beyond_retrained) == (0.0, "no leak found")
    assert drop.null is not None
    assert drop.null.low < 0.5 < drop.null.high
    found = audited(problem, problem.original, problem.original, retrained=problem.retrained[0])
    assert found.beyond_retrained == "leak"
    confidence = found.row("confidence")
    assert confidence.beyond is not None
    assert confidence.beyond.low > 0.3
    assert confidence.null is None


def test_a_change_of_basis_hides_an_update_from_the_naive_attacker_alone(problem: PlantedProblem) -> None:
    few = TensorExamples(problem.forget.x[:12], problem.forget.y[:12])
    start = problem.retrained[0]
    moved, _ = teleport(stepped_up(start, few), ChangeOfBasis(), retain=problem.retain, seed=20)
    found = audited(problem, start, moved, forget=few, steps=None)
    assert found.row("update alignment").strength.value < 0.75
    assert found.row("update alignment after canonical").auc.value > 0.9
    plain = audited(problem, start, stepped_up(start, few), forget=few)
    assert plain.row("update alignment").auc.value == pytest.approx(
        found.row("update alignment after canonical").auc.value, abs=0.01
    )


def test_verdicts_agree_with_their_rows() -> None:
    draw = np.random.default_rng(21)

    def verdicts(shift: float, count: int, margin: float) -> tuple[list[str], str]:
        scores = {
            Attack(str(i), "naive", ""): np.concatenate([draw.normal(shift, 1, count), draw.normal(0, 1, 4 * count)])
            for i in range(5)
        }
        rows = rows_of(scores, count, retrained=None, null=None, level=0.95, margin=margin)
        strongest = strongest_of(rows, scores, count, level=0.95)
        assert strongest.low <= max(row.strength.low for row in rows)
        assert strongest.high >= max(row.strength.high for row in rows)
        return [row.verdict for row in rows], overall(rows)

    assert verdicts(2.0, 200, 0.02) == (["leak"] * 5, "leak")
    rows, whole = verdicts(0.0, 20, 0.02)
    assert (set(rows), whole) == ({"inconclusive"}, "inconclusive")
    rows, whole = verdicts(0.0, 3000, 0.2)
    assert (set(rows), whole) == ({"no leak found"}, "no leak found")
    # Two examples apart from all others are no proof, however small a p-value is.
    rows, whole = verdicts(9.0, 2, 0.02)
    assert (set(rows), whole) == ({"inconclusive"}, "inconclusive")


def test_a_rate_is_that_of_the_better_tail() -> None:
    draw = np.random.default_rng(21)
    forgotten = np.concatenate([draw.normal(-9, 1, 300), draw.normal(0.6, 1, 700)])
    scores = {Attack("one", "naive", ""): np.concatenate([forgotten, draw.normal(0, 1, 2000)])}
    (row,) = rows_of(scores, 1000, retrained=None, null=None, level=0.95, margin=0.02)
    rate = next(rate.tpr for rate in row.rates if rate.fpr == 0.01)
    assert row.auc.value < 0.55
    assert rate is not None
    assert rate.value == pytest.approx(0.3, abs=0.02)


def test_results_are_plain_data(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, problem.retrained[0], retrained=problem.retrained[0])
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (plain["schema_version"], plain["kind"]) == (1, "pair")
    assert [row["name"] for row in plain["rows"]] == [row.name for row in found.rows]
    negatives = found.counts["never seen"]
    assert plain["rows"][0]["rates"][0] == {"fpr": 0.0001, "resolved": False, "negatives": negatives, "tpr": None}
    assert plain["digests"]["original"] != plain["digests"]["unlearned"]
    assert any("no shadow model" in line for line in plain["threat"])


def test_models_are_left_as_they_are_and_train_mode_is_said(problem: PlantedProblem) -> None:
    other = deepcopy(problem.original).train()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    found = audited(problem, problem.original, other)
    assert other.training
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert "the unlearned model was given in train mode and scored in eval mode" in found.notes


@pytest.mark.parametrize("steps", [("naive",), None])
def test_identical_models_rank_nothing_by_their_difference(problem: PlantedProblem, steps: Any) -> None:
    found = audited(problem, problem.original, deepcopy(problem.original), steps=steps)
    assert ("after conservation" in found.not_tried) is (steps is None)
    row = found.row("gradient difference")
    assert (row.auc.value, row.auc.low, row.auc.high, row.verdict) == (0.5, 0.0, 1.0, "inconclusive")
    assert any(note.startswith("gradient difference: all scores are equal") for note in found.notes)


def test_the_same_seed_gives_the_same_audit(problem: PlantedProblem) -> None:
    draws = [audited(problem, *problem.retrained, seed=seed) for seed in (3, 3, 4)]
    assert draws[0].as_json() == draws[1].as_json()
    assert not np.array_equal(draws[0].test_index, draws[2].test_index)


class Branching(nn.Module):
    """A network whose way depends on the shape, or on a value, of its input."""

    def __init__(self, inner: nn.Module, *, on_value: bool) -> None:
        super().__init__()
        self.inner, self.on_value = inner, on_value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        usual = bool(x.sum() > -1e9) if self.on_value else bool(x.shape[0] > 0)
        return self.inner(x) if usual else x


def test_what_cannot_be_tried_is_listed_with_the_reason(problem: PlantedProblem) -> None:
    one, other = (Branching(deepcopy(model), on_value=True).eval() for model in problem.retrained)
    found = audited(problem, one, other)
    assert [row.name for row in found.rows] == ["confidence", "confidence drop", "gradient norm", "gradient difference"]
    assert list(found.not_tried) == ["update alignment"]


def test_a_step_that_cannot_apply_is_listed(problem: PlantedProblem) -> None:
    one, other = (Branching(deepcopy(model), on_value=False).eval() for model in problem.retrained)
    found = audited(problem, one, other, steps=("naive", "canonical"))
    assert list(found.not_tried) == ["after canonical"]
    assert {row.step for row in found.rows} == {"naive"}


def test_bad_input(problem: PlantedProblem) -> None:
    joined = TensorExamples(
        torch.cat([problem.forget.x[:3], problem.test.x]), torch.cat([problem.forget.y[:3], problem.test.y])
    )
    with pytest.raises(DataError, match=r"3 test examples are also in the forget set \(first: test row 0\)"):
        audited(problem, problem.original, problem.original, test=joined)
    with pytest.raises(InputError, match="there is no pre-step 'canonic'"):
        audited(problem, problem.original, problem.original, steps=("canonic",))
    with pytest.raises(InputError, match="give at least"):
        audited(problem, problem.original, problem.original, steps=())
    with pytest.raises(InputError, match="background is 1"):
        audited(problem, problem.original, problem.original, background=1)
    with pytest.raises(InputError, match="there is no defence 'wrap'; did you mean 'warp'"):
        audited(problem, problem.original, problem.original, steps=None, defense="wrap")
    with pytest.raises(InputError, match="probes is 0"):
        audited(problem, problem.original, problem.original, probes=0)
    with pytest.raises(InputError, match="margin is 5"):
        audited(problem, problem.original, problem.original, margin=5)
    first, _ = problem.retrained
    with pytest.raises(InputError, match="model retrained 1 has the very weights of original"):
        audited(problem, problem.original, first, retrained=deepcopy(problem.original))
    with pytest.raises(InputError, match="model retrained 2 has the very weights of retrained 1"):
        audited(problem, problem.original, first, retrained=[first, deepcopy(first)])


def test_what_was_trained_on_cannot_stand_for_what_was_never_seen(problem: PlantedProblem) -> None:
    x, y = problem.test.x, problem.test.y
    few = max(1, len(y) // 150)
    with pytest.raises(DataError, match=rf"{len(y)} of {len(y)} test examples are also in the retain set"):
        audited(problem, problem.original, problem.original, retain=(x, y))
    found = audited(problem, problem.original, problem.original, retain=(x[:few], y[:few]))
    assert f"{few} of {len(y)} test examples are also in the retain set" in found.notes
    with pytest.raises(InputError, match="one architecture"):
        audited(problem, problem.original, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval())
    wrong = TensorExamples(problem.forget.x.clone(), problem.forget.y)
    wrong.x[2] = float("nan")
    with pytest.raises(DataError, match="row 2"):
        audited(problem, problem.original, problem.original, forget=wrong)


def test_steps_together_score_as_each_alone(problem: PlantedProblem) -> None:
    start = problem.retrained[0]
    moved, _ = teleport(stepped_up(start, problem.forget), ChangeOfBasis(), retain=problem.retain, seed=20)
    steps = ("naive", "canonical", "scale-free", "canonical+span")
    for other in (moved, problem.retrained[1]):
        together = audited(problem, start, other, steps=steps)
        for step in steps:
            alone = audited(problem, start, other, steps=step)
            for attack, scores in alone.scores.items():
                np.testing.assert_allclose(together.scores[attack], scores, rtol=1e-5, atol=1e-7, err_msg=str(attack))
        assert [str(attack) for attack in together.scores][-4:] == [
            "update alignment",
            *(f"update alignment after {step}" for step in steps[1:]),
        ]


@pytest.mark.parametrize("frozen", [False, True])
def test_scores_are_those_of_the_attacks_by_themselves(problem: PlantedProblem, frozen: bool) -> None:
    one, other = deepcopy(problem.retrained[0]), problem.retrained[1]
    # What is frozen has no part in the gradient difference, and has one in the alignment.
    next(one.parameters()).requires_grad_(not frozen)
    test = problem.test
    candidates, background = TensorExamples(test.x[:40], test.y[:40]), TensorExamples(test.x[40:140], test.y[40:140])
    attacker = PairAttacker(
        one,
        candidates=candidates,
        background=background,
        probes=problem.retain,
        steps=("naive", "span", "scale-free"),
        ridge=0.01,
        relative_ridge=True,
    )
    found = {str(attack): scores for attack, scores in attacker.attack(other).scores.items()}
    given: dict[str, Any] = {"candidates": candidates, "background": background}
    expected = gradient_difference(one, other, **given, ridge=0.01, relative_ridge=True)
    np.testing.assert_allclose(found["gradient difference"], expected.statistic, rtol=1e-4)
    held = Held(one, (problem.retain.x, problem.retain.y))
    steps = {name: make_pre_step(name).prepared(held) for name in ("naive", "span", "scale-free")}
    differences = {name: difference(one, undo(other.state_dict())) for name, undo in steps.items()}
    pair = candidates.x, candidates.y
    aligned = update_alignment(one, differences, candidates=pair, by_kernel=["scale-free"])
    assert list(found)[-3:] == ["update alignment", "update alignment after span", "update alignment after scale-free"]
    for name, scores in zip(steps, list(found.values())[-3:], strict=True):
        np.testing.assert_allclose(scores, aligned[name], atol=1e-6, err_msg=name)
    alone = attacker.attack(other, steps=("span",)).scores
    assert [attack.step for attack in alone] == ["naive"] * 3 + ["span"] * 2


def test_one_auditor_finds_of_each_model_what_an_audit_of_it_finds(
    problem: PlantedProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets: dict[str, Any] = {"forget": problem.forget, "test": problem.test, "retain": problem.retain, "seed": 3}
    expected = [
        audit_pair(problem.original, problem.retrained[0], **sets, retrained=problem.retrained, steps="span"),
        audit_pair(problem.original, problem.retrained[1], **sets, retrained=problem.retrained, steps="span"),
        audit_pair(problem.original, problem.retrained[1], **sets, retrained=problem.retrained, defense="none"),
    ]
    made: list[int] = []
    monkeypatch.setattr(inputs, "input_spectra", lambda held: made.append(1) or input_spectra(held))
    auditor = PairAuditor(problem.original, **sets, retrained=problem.retrained)
    found = [
        auditor.audit(problem.retrained[0], steps="span"),
        auditor.audit(problem.retrained[1], steps="span"),
        auditor.audit(problem.retrained[1], defense="none"),
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.as_json() == other.as_json()
    # One original and one retrained model that stands for one, whatever is compared with them.
    assert len(made) <= 3


def test_an_auditor_checks_every_model(problem: PlantedProblem) -> None:
    auditor = PairAuditor(problem.original, forget=problem.forget, test=problem.test)
    with pytest.raises(InputError, match="one architecture"):
        auditor.audit(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), steps="naive")
    with pytest.raises(InputError, match="ridge is -1"):
        PairAuditor(problem.original, forget=problem.forget, test=problem.test, ridge=-1).audit(problem.retrained[0])
