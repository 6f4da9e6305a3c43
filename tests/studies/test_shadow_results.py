"""What a carried-out audit says, against the same computed by hand."""

from __future__ import annotations

import json
import stat
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from typer import Exit

from warp_unlearning import unlearn
from warp_unlearning.cli.audit_check import check
from warp_unlearning.cli.audit_shadow import show
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.methods.registry import make_method
from warp_unlearning.models.networks import MLP
from warp_unlearning.randomness import Streams
from warp_unlearning.report.page import make_report
from warp_unlearning.report.read import read as read_results
from warp_unlearning.report.schema_shadow import Shadow
from warp_unlearning.studies.shadow_plan import Task, forgotten, retained
from warp_unlearning.studies.shadow_work import ShadowWork
from warp_unlearning.studies.stored import array_bytes, arrays_of, weight_bytes, weights_of
from warp_unlearning.training.scoring import logit_confidence, logits
from warp_unlearning.workflows.audit_secret import FILE
from warp_unlearning.workflows.audit_shadow import results_digest


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
    work = ShadowWork(plan, carried.prepared.secret.seed)
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


def test_results_are_plain_private_and_repeatable(carried: Any) -> None:
    json.dumps(carried.results, allow_nan=False)
    folder = carried.prepared.run.path
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert carried.results["digests"]["results"] == results_digest(carried.results)
    text = (folder / "results.json").read_text()
    assert not any(
        number in text for number in (str(carried.prepared.secret.seed), f"{carried.prepared.secret.seed:x}")
    )


def test_bytes_are_the_same_each_time() -> None:
    arrays = {"a": np.arange(3.0), "b": np.array(2.5)}
    assert array_bytes(arrays) == array_bytes(dict(arrays))
    assert arrays_of(array_bytes(arrays))["b"].shape == ()
    state = MLP(inputs=2, classes=2, hidden=()).state_dict()
    assert weight_bytes(state) == weight_bytes(dict(state))


def test_table_page_file_and_gate_say_one_verdict(carried: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, codes = carried.prepared.run.path, {"holds": 0, "does not hold": 1, "cannot be said": 3}
    show(carried.results)
    table = capsys.readouterr().out.splitlines()
    read = read_results(folder)
    assert isinstance(read, Shadow)
    page = make_report(read).html
    for arm, plain in zip(read.arms, carried.results["arms"], strict=True):
        assert arm.verdict is not None
        said, outcome = arm.verdict.sentence, arm.verdict.outcome
        assert said == plain["verdict"]["sentence"]
        assert any(line.lstrip().startswith(arm.name) and outcome in line for line in table)
        assert f"{outcome}</span>" in page
        assert ", ".join(arm.verdict.reasons) in page
        with pytest.raises(Exit) if codes[outcome] else nullcontext() as ended:
            check(folder, arm=[arm.name])
        assert codes[outcome] == (ended.value.exit_code if ended else 0)
        printed = capsys.readouterr().out
        assert all(claim.sentence in printed for claim in arm.verdict.claims)
