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

from warp_unlearning import ChangeOfBasis, audit_pair, teleport
from warp_unlearning.attacks.membership.pair_audit import PairAudit, PairAuditor
from warp_unlearning.conformance.planted_leak import (
    PlantedProblem,
    forgotten_too_well,
    planted_problem,
    stepped_up,
    train_network,
)
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.randomness import Streams
from warp_unlearning.report.schema import Pair
from warp_unlearning.training.scoring import logit_confidence, logits


@pytest.fixture(scope="module")
def problem() -> PlantedProblem:
    return planted_problem(20)


@pytest.fixture(scope="module")
def third(problem: PlantedProblem) -> nn.Module:
    return train_network(problem.retain, Streams(20, "third"))


def audited(problem: PlantedProblem, one: nn.Module, other: nn.Module, **settings: Any) -> PairAudit:
    given = {"forget": problem.forget, "test": problem.test, "retain": problem.retain, "steps": ("naive",)}
    return audit_pair(one, other, **(given | settings))


def noised(model: nn.Module, size: float) -> nn.Module:
    other, generator = deepcopy(model), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in other.parameters():
            p += size * p.std() * torch.randn(p.shape, generator=generator)
    return other


def reasons(found: PairAudit) -> dict[str, str]:
    return {claim.name: claim.reason for claim in found.verdict.claims}


def test_a_model_that_forgot_nothing_is_recognised_where_the_rows_were_drawn(problem: PlantedProblem) -> None:
    new = stepped_up(problem.original, problem.retain, length=0.01)
    found = audited(problem, problem.original, new, drawn=True)
    assert (found.verdict.exit, reasons(found)["forgotten"]) == (1, "recognised")
    for name, at_least in (("confidence", 0.9), ("gradient norm", 0.9), ("gradient difference", 0.8)):
        assert found.row(name).strength.value > at_least
    assert found.strongest_strength().value == max(row.strength.value for row in found.rows)
    assert found.strongest_strength().low < found.row(found.strongest).strength.low
    unknown = audited(problem, problem.original, new)
    assert (unknown.verdict.exit, reasons(unknown)["forgotten"]) == (3, "differs from unseen rows")


@pytest.mark.parametrize("size", [0.0, 1e-4, 0.05])
def test_nothing_that_was_done_to_a_model_passes(problem: PlantedProblem, third: nn.Module, size: float) -> None:
    new = noised(problem.original, size) if size else deepcopy(problem.original)
    for drawn in (False, True):
        for retrained in ((), problem.retrained, (problem.retrained[0], third)):
            found = audited(problem, problem.original, new, drawn=drawn, retrained=retrained, max_drop=0.5)
            assert found.verdict.exit != 0
            if drawn or retrained or size < 1e-3:
                assert found.verdict.exit == 1
            if size < 1e-3:
                assert reasons(found)["moved"] == "nothing moved"


def test_a_retrained_model_beside_two_others_is_not_accused(problem: PlantedProblem, third: nn.Module) -> None:
    models = (*problem.retrained, third)
    for i, new in enumerate(models):
        found = audited(problem, problem.original, new, retrained=models[:i] + models[i + 1 :], steps=None)
        assert found.verdict.exit != 1
        assert found.verdict.null == "retrained"
        assert {claim.name for claim in found.verdict.claims} == {"moved", "works", "forgotten", "hidden"}
        assert len(found.rows) == 24
        assert all(len(row.retrained) == 2 for row in found.rows)
        # What even retraining shows to who holds both models.
        assert found.row("confidence drop").auc.value > 0.9
        assert found.row("confidence drop").original is None


def test_what_the_weights_show_beyond_retraining_is_not_hidden(problem: PlantedProblem) -> None:
    first, second = problem.retrained
    leaking = stepped_up(first, problem.forget, length=0.5)
    found = audited(problem, problem.original, leaking, retrained=[second, problem.retrained[0]])
    assert found.row("gradient norm").original is not None
    same = audited(problem, first, stepped_up(first, problem.forget), retrained=second)
    assert "hidden" in reasons(same)
    assert found.verdict.exit != 0


@pytest.mark.parametrize("which", ["the original", "a copy of it", "the new model"])
def test_references_that_are_none_make_an_audit_blind(problem: PlantedProblem, which: str) -> None:
    new, other = problem.retrained
    fake = {"the original": problem.original, "a copy of it": deepcopy(problem.original), "the new model": new}[which]
    for retrained in ([fake], [other, fake]):
        found = audited(problem, problem.original, new, retrained=retrained)
        assert found.verdict.exit == 3
        assert reasons(found)["forgotten"] == reasons(found)["hidden"] == "no reference"


def test_one_reference_twice_is_one(problem: PlantedProblem) -> None:
    first, second = problem.retrained
    with pytest.raises(InputError, match="model retrained 2 has the very weights of retrained 1"):
        audited(problem, problem.original, second, retrained=[first, deepcopy(first)])
    untouched = [deepcopy(problem.original) for _ in range(2)]
    with pytest.raises(InputError, match="retrained 2 has the very weights of the original, as retrained 1 has"):
        audited(problem, problem.original, second, retrained=untouched)


def test_one_that_forgot_too_well_is_found_by_what_changed(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, forgotten_too_well(problem))
    assert found.strongest == "confidence drop"
    assert found.strongest_strength().low > 0.9


def test_an_area_is_that_of_the_scores_it_names(problem: PlantedProblem) -> None:
    # Of one class, so that matching changes nothing.
    alike = problem.forget.select((problem.forget.y == 3).nonzero().flatten())
    after = forgotten_too_well(problem)
    found = audited(problem, problem.original, after, forget=alike)
    forgotten, never = (
        part.select(torch.from_numpy(index))
        for part, index in ((alike, found.forget_index), (problem.test, found.test_index))
    )
    assert set(never.y.tolist()) == {3}
    scores = []
    for part in (forgotten, never):
        phi = [logit_confidence(logits(m, part).numpy(), part.y.numpy()) for m in (problem.original, after)]
        scores.append(phi[0] - phi[1])
    truth = [1] * len(forgotten) + [0] * len(never)
    assert found.row("confidence drop").auc.value == pytest.approx(roc_auc_score(truth, np.concatenate(scores)))
    assert found.counts == {
        "forgotten": len(alike), "never seen": len(never), "test": 865, "background": 432, "probes": 400
    }  # fmt: skip
    assert found.models["original"]["accuracy, forgotten"] == 1.0


def test_areas_are_matched_by_class_over_all_unseen_rows(problem: PlantedProblem) -> None:
    class Label:
        """Knows the class alone."""

        name, needs = "label", "new outputs"

        def score(self, pair: Any, batch: Any) -> torch.Tensor:
            return batch.y.double() + batch.x.flatten(1)[:, 20] / 100

    some = torch.cat([(problem.forget.y == 7).nonzero().flatten()[:8], (problem.forget.y == 2).nonzero().flatten()[:1]])
    forget = problem.forget.select(some)
    # One scarce class does not cost the others their unseen rows.
    kept = torch.cat([(problem.test.y == 7).nonzero().flatten(), (problem.test.y == 2).nonzero().flatten()[:3]])
    test = problem.test.select(torch.cat([kept, (problem.test.y == 4).nonzero().flatten()]))
    found = audited(problem, problem.original, problem.retrained[0], forget=forget, test=test, attacks=[Label()])
    labels, scores = found.classes, found.scores["label"]
    forgotten, unseen = np.split(np.arange(len(labels)), [len(found.forget_index)])
    assert set(labels[unseen]) == {2, 7}
    assert (labels[unseen] == 7).sum() > 20
    areas = {
        c: roc_auc_score(np.isin(at, forgotten), scores[at]) for c in (2, 7) for at in [np.flatnonzero(labels == c)]
    }
    assert found.row("label").auc.value == pytest.approx((areas[2] + 8 * areas[7]) / 9)
    assert abs(roc_auc_score(np.arange(len(labels)) < 9, scores) - found.row("label").auc.value) > 0.01


def test_one_forgotten_row_is_judged(problem: PlantedProblem) -> None:
    forget = problem.forget.select(torch.tensor([0]))
    for drawn in (False, True):
        found = audited(problem, problem.original, stepped_up(problem.original, forget), forget=forget, drawn=drawn)
        assert found.counts["forgotten"] == 1
        assert found.row("confidence").auc.low == 0.0
        assert found.verdict.exit in (1, 3)


def test_classes_without_unseen_rows_are_left_out_and_said_so(problem: PlantedProblem) -> None:
    others = problem.test.select((problem.test.y != 3).nonzero().flatten())
    found = audited(problem, problem.original, problem.retrained[0], test=others)
    assert found.counts["forgotten"] == int((problem.forget.y != 3).sum())
    assert any("whose class has no unseen row" in text for text in found.verdict.assumes)
    alone = problem.forget.select((problem.forget.y == 3).nonzero().flatten())
    none = audited(problem, problem.original, problem.retrained[0], forget=alone, test=others)
    assert (none.rows, none.strongest, reasons(none)["forgotten"]) == ((), "", "no unseen rows")
    assert none.verdict.exit == 3
    json.dumps(none.as_json(), allow_nan=False)


def test_a_collapsed_model_is_harmed(problem: PlantedProblem) -> None:
    known = TensorExamples(problem.retain.x[:300], problem.retain.y[:300])
    found = audited(problem, problem.original, problem.retrained[0], test=known, retain=None, margin=0.1)
    collapsed = audited(
        problem, problem.original, noised(problem.original, 5.0), test=known, retain=None, attacks=["accuracy"]
    )
    assert reasons(found)["works"] == "works"
    assert (collapsed.verdict.exit, reasons(collapsed)["works"]) == (1, "harmed")


def test_margin_and_allowed_drop_are_the_judges(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, problem.retrained[0], drawn=True, margin=0.2, max_drop=0.3)
    assert (found.verdict.margin, found.verdict.max_drop) == (0.2, 0.3)
    assert reasons(found)["forgotten"] == "not recognised"
    assert found.verdict.exit == 0
    strict = audited(problem, problem.original, problem.retrained[0], drawn=True, margin=0.001, max_drop=0.3)
    assert strict.verdict.exit != 0
    wrong: list[tuple[dict[str, Any], str]] = [({"margin": size}, f"margin {size} .--margin") for size in (5, -1, 0.5)]
    for settings, message in (*wrong, ({"max_drop": 2}, "max_drop 2 .--max-drop.*below 1")):
        with pytest.raises(InputError, match=message):
            audited(problem, problem.original, problem.original, **settings)


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


def test_a_rate_is_that_of_the_better_tail(problem: PlantedProblem) -> None:
    class Split:
        """Low for a third of what was forgotten, else a little high."""

        name, needs = "split", "new outputs"

        def score(self, pair: Any, batch: Any) -> torch.Tensor:
            known = (batch.x.flatten(1)[:, None] == problem.forget.x.flatten(1)[None, :33]).all(2).any(1)
            return torch.where(known, -9.0, batch.x.flatten(1)[:, 27] / 100)

    found = audited(problem, problem.original, problem.original, attacks=[Split()])
    rate = next(rate for rate in found.row("split").rates if rate.fpr == 0.05)
    assert rate.tpr is not None
    assert rate.tpr.value == pytest.approx(0.33)


def test_results_are_plain_data_of_the_schema(problem: PlantedProblem) -> None:
    found = audited(problem, problem.original, problem.retrained[0], retrained=problem.retrained[1])
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))
    results = Pair.model_validate(plain | {"date": "2026-01-02T03:04:05+00:00"})
    assert results.verdict == found.verdict
    assert [row.name for row in results.rows] == [row.name for row in found.rows]
    assert plain["rows"][0]["rates"][0]["resolved"] is False
    assert plain["digests"]["original"] != plain["digests"]["unlearned"] != plain["digests"]["retrained 1"]
    assert any("no shadow model" in line for line in plain["threat"])


def test_train_mode_is_said(problem: PlantedProblem) -> None:
    other = deepcopy(problem.original).train()
    found = audited(problem, problem.original, other)
    assert other.training
    assert "the unlearned model was given in train mode and scored in eval mode" in found.notes


@pytest.mark.parametrize("steps", [("naive",), None])
def test_identical_models_rank_nothing_by_their_difference(problem: PlantedProblem, steps: Any) -> None:
    found = audited(problem, problem.original, deepcopy(problem.original), steps=steps)
    assert ("after conservation" in found.not_tried) is (steps is None)
    assert found.row("gradient difference").auc.value == 0.5
    (equal,) = [note for note in found.notes if "equal" in note]
    assert equal.startswith("all scores of a class are equal by confidence drop, gradient difference")
    beside = audited(problem, problem.original, deepcopy(problem.original), retrained=problem.retrained[0])
    assert "hidden    not judged: no attack on both models tells any two rows apart" in beside.verdict.lines


def test_the_same_seed_gives_the_same_audit(problem: PlantedProblem) -> None:
    draws = [audited(problem, *problem.retrained, seed=seed, repetitions=2, attacks=["ggd"]) for seed in (3, 3, 4)]
    assert draws[0].as_json() == draws[1].as_json()
    assert not np.array_equal(draws[0].test_index, draws[2].test_index)


class Branching(nn.Module):
    """A network whose way depends on the shape of its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if bool(x.shape[0] > 0) else x


def test_a_step_that_cannot_apply_is_listed(problem: PlantedProblem) -> None:
    one, other = (Branching(deepcopy(model)).eval() for model in problem.retrained)
    found = audited(problem, one, other, steps=("naive", "canonical"))
    assert list(found.not_tried) == ["after canonical"]
    assert {row.step for row in found.rows} == {"naive"}


def test_models_of_two_architectures_meet_attacks_on_outputs_alone(problem: PlantedProblem) -> None:
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with pytest.raises(InputError, match=r"difference needs the weights of both models: .* one architecture"):
        audited(problem, problem.original, other)
    found = audited(problem, problem.original, other, attacks=["accuracy", "gradient norm", "confidence drop"])
    assert [row.name for row in found.rows] == ["accuracy", "gradient norm", "confidence drop"]


def test_bad_input(problem: PlantedProblem) -> None:
    def joined(part: TensorExamples, count: int, to: TensorExamples) -> TensorExamples:
        return TensorExamples(torch.cat([part.x[:count], to.x]), torch.cat([part.y[:count], to.y]))

    original, forget, test, retain = problem.original, problem.forget, problem.test, problem.retain
    cases: list[tuple[dict[str, Any], str]] = [
        ({"test": joined(forget, 3, test)}, r"3 test examples are also in the forget set \(first: test row 0\)"),
        ({"retain": joined(forget, 3, retain)}, "3 examples of the retain set are also in the forget set"),
        ({"retain": test}, "1297 of 1297 test examples are also in the retain set"),
        ({"test": None}, r"examples that no model saw: give them as test=\(x, y\)"),
        ({"test": (test.x[:2], test.y[:2])}, "there are 2 test examples"),
        ({"steps": ("canonic",)}, "there is no pre-step 'canonic'"),
        ({"steps": ()}, "give at least"),
        ({"steps": "span", "attacks": ["accuracy"]}, "there is nothing to undo; give no step"),
        ({"steps": "canonicall", "attacks": ["accuracy"]}, "no pre-step 'canonicall'; did you mean 'canonical'"),
        ({"background": 1}, "background is 1"),
        ({"background": 6, "repetitions": 4}, "the background has 6 examples for 4 repetitions"),
        ({"steps": None, "defense": "wrap"}, "there is no defence 'wrap'; did you mean 'warp'"),
        ({"probes": 0}, "probes is 0"),
        ({"drawn": 3}, "drawn is 3"),
        ({"ridge": -1}, "ridge is -1"),
        ({"attacks": ["acuracy"]}, "no attack 'acuracy'"),
        ({"attacks": ["accuracy", "accuracy"]}, "have one name"),
    ]
    for settings, message in cases:
        with pytest.raises((DataError, InputError), match=message):
            audited(problem, original, problem.retrained[0], **settings)
    wrong = TensorExamples(forget.x.clone(), forget.y)
    wrong.x[2] = float("nan")
    with pytest.raises(DataError, match="row 2"):
        audited(problem, original, original, forget=wrong)
    broken = deepcopy(original)
    with torch.no_grad():
        next(broken.parameters())[0] = torch.nan
    with pytest.raises(InputError, match="unlearned model's output is not finite"):
        audited(problem, original, broken)


def test_no_retrained_model_is_none_or_nothing(problem: PlantedProblem) -> None:
    some = {"attacks": ["accuracy"], "retain": None}
    found = [audited(problem, problem.original, problem.retrained[0], retrained=r, **some) for r in (None, ())]
    assert found[0].as_json() == found[1].as_json()
    assert found[0].verdict.null == "unseen"


def test_a_few_test_rows_among_the_retained_are_left_out(problem: PlantedProblem) -> None:
    test = problem.test
    few = len(test) // 150
    found = audited(problem, problem.original, problem.retrained[0], retain=(test.x[:few], test.y[:few]))
    assert f"{few} of {len(test)} test examples are also in the retain set: left out" in found.notes
    assert found.test_index.min() >= few


def test_scores_that_are_not_finite_name_attack_row_and_model(problem: PlantedProblem) -> None:
    class Broken:
        """Infinite for the test row 500."""

        name, needs = "broken", "both weights"

        def score(self, pair: Any, batch: Any) -> torch.Tensor:
            here = (batch.x == problem.test.x[index]).flatten(1).all(1)
            return torch.where(here, torch.inf, 0.0)

    index = int(audited(problem, *problem.retrained, attacks=["accuracy"]).test_index[5])
    row = f"attack broken gives row {index} of the test set under the unlearned model"
    with pytest.raises(InputError, match=f"{row} the score inf, as 1 rows in all; mend the `score` of this attack"):
        audited(problem, *problem.retrained, attacks=[Broken()])


def test_one_auditor_finds_of_each_model_what_an_audit_of_it_finds(problem: PlantedProblem) -> None:
    sets: dict[str, Any] = {"forget": problem.forget, "test": problem.test, "retain": problem.retain, "seed": 3}
    sets["retrained"] = problem.retrained[1]
    auditor = PairAuditor(problem.original, **sets)
    for steps in ("span", ("naive", "canonical"), "span"):
        expected = audit_pair(problem.original, problem.retrained[0], **sets, steps=steps)
        assert auditor.audit(problem.retrained[0], steps=steps).as_json() == expected.as_json()
