"""What a carried-out audit says, against the same computed by hand."""

from __future__ import annotations

import json
import stat
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from warp_unlearning import shadow_audit, unlearn
from warp_unlearning.attacks.membership.confidence import logit_confidence
from warp_unlearning.data.load import load_data
from warp_unlearning.methods.registry import make_method
from warp_unlearning.models.mlp import MLP
from warp_unlearning.randomness import Streams
from warp_unlearning.studies.shadow_plan import Task, forgotten, retained
from warp_unlearning.studies.shadow_results import _extra
from warp_unlearning.studies.shadow_work import ShadowWork
from warp_unlearning.studies.stored import array_bytes, arrays_of, weight_bytes, weights_of
from warp_unlearning.training.scoring import logits
from warp_unlearning.workflows.audit_shadow import SEEDS, results_digest


def network(state: dict[str, Any]) -> MLP:
    model = MLP(inputs=6, classes=3, hidden=(32,))
    model.load_state_dict(state)
    return model.eval()


def test_an_unlearned_model_is_what_unlearn_gives(carried: Any) -> None:
    plan, store = carried.prepared.plan, carried.prepared.store
    data = load_data("npz", path=plan.settings.data["path"])
    original = network(weights_of(store.read(plan.key(Task("train", 1))).read("model.safetensors")))
    sets = [
        data.train.select(torch.from_numpy(index))
        for index in (forgotten(plan.design, 1, 0), retained(plan.design, 1, 0))
    ]
    settings = plan.settings.arms[0].method_settings
    seed = Streams(0, "unlearn", 1).number(0)
    work = ShadowWork(plan, carried.prepared.seeds)
    result = unlearn(
        original,
        forget=sets[0],
        retain=sets[1],
        validation=work._held_out[0],
        method=make_method("ngp", **settings),
        seed=seed,
    )
    stored = weights_of(store.read(plan.key(Task("unlearn", 1, 0, 0))).read("model.safetensors"))
    assert all(torch.equal(value, stored[name]) for name, value in result.model.state_dict().items())
    scores = arrays_of(store.read(plan.key(Task("score", 1, 0, 0))).read("scores.npz"))
    expected = logit_confidence(logits(result.model, data.train).double().numpy(), data.train.y.numpy())
    np.testing.assert_allclose(scores["confidence"], expected, rtol=1e-6)


def test_an_arm_is_the_audit_of_its_scores(carried: Any) -> None:
    plan, store = carried.prepared.plan, carried.prepared.store
    for index, arm in enumerate(carried.results["arms"]):
        rows = [
            arrays_of(store.read(plan.key(Task("score", shadow, part, index))).read("scores.npz"))["confidence"]
            for shadow in range(4)
            for part in range(2)
        ]
        design = plan.design
        audit = shadow_audit(np.stack(rows), forgotten=design.forgotten, never=design.never, groups=design.groups)
        assert arm["all"]["auc"]["value"] == audit.auc
        interval = audit.interval()
        assert (arm["all"]["auc"]["low"], arm["all"]["auc"]["high"]) == (interval.low, interval.high)
        assert (arm["missing"], arm["complete"]) == (0, True)


def test_a_change_of_basis_changes_no_answer_and_reduces_nothing(carried: Any) -> None:
    base, moved = carried.results["arms"][:2]
    assert (base["name"], moved["name"]) == ("ngp", "ngp + cob")
    assert abs(base["all"]["auc"]["value"] - moved["all"]["auc"]["value"]) < 0.01
    assert base["reduction"] is None
    assert abs(moved["reduction"]["difference"]["value"]) < 0.01
    assert base["strongest"]["pairs"] == 1
    assert len(carried.results["arms"]) == 4


def test_curves_histograms_and_risks_are_those_of_the_scores(carried: Any) -> None:
    arm = carried.results["arms"][0]
    curve = arm["roc"]
    assert (curve["fpr"][0], curve["tpr"][0], curve["fpr"][-1], curve["tpr"][-1]) == (0.0, 0.0, 1.0, 1.0)
    assert np.trapezoid(curve["tpr"], curve["fpr"]) == pytest.approx(arm["all"]["auc"]["value"], abs=0.01)
    widths = np.diff(arm["histogram"]["edges"])
    for part in ("forgotten", "never"):
        assert np.sum(widths * arm["histogram"][part]) == pytest.approx(1.0)
    assert len(arm["risk"]["score"]) == len(arm["risk"]["gradient_norm"]) == arm["all"]["positives"]


def test_results_are_plain_private_and_repeatable(carried: Any) -> None:
    json.dumps(carried.results, allow_nan=False)
    folder = carried.prepared.run.path
    assert stat.S_IMODE((folder / SEEDS).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert carried.results["digests"]["results"] == results_digest(carried.results)
    text = (folder / "results.json").read_text()
    assert not any(str(seed) in text for seed in carried.prepared.seeds.values())


def test_bytes_are_the_same_each_time() -> None:
    arrays = {"a": np.arange(3.0), "b": np.array(2.5)}
    assert array_bytes(arrays) == array_bytes(dict(arrays))
    assert arrays_of(array_bytes(arrays))["b"].shape == ()
    state = MLP(inputs=2, classes=2, hidden=()).state_dict()
    assert weight_bytes(state) == weight_bytes(dict(state))


def test_the_extra_time_of_a_defence_has_an_interval_that_covers() -> None:
    draw, covered = np.random.default_rng(20), 0
    for _ in range(500):
        found = _extra(draw.gamma(30, 0.1, 40), draw.gamma(20, 0.1, 40))
        assert found is not None
        covered += found["low"] <= 0.5 <= found["high"]
    assert 0.92 <= covered / 500 <= 0.98
    assert _extra(np.array([2.0, 2.0]), np.array([1.0, 1.0])) == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert _extra(np.array([2.0]), np.array([1.0, 1.0])) is None


def test_a_defended_row_has_the_rise_of_privacy_and_every_row_its_rank_correlation(carried: Any) -> None:
    base, moved = carried.results["arms"][:2]
    rise = moved["reduction"]["privacy"]
    areas = [max(arm["all"]["auc"]["value"], 1 - arm["all"]["auc"]["value"]) for arm in (base, moved)]
    assert rise["value"] == pytest.approx((1 - areas[1]) / (1 - areas[0]) - 1)
    assert rise["low"] <= rise["value"] <= rise["high"]
    # All points are shown here, so that the figure's correlation is that of the row.
    risk = base["risk"]
    assert risk["correlation"]["value"] == pytest.approx(spearmanr(risk["gradient_norm"], risk["score"])[0])
    assert moved["gradient_test"]["reduction"] is None
