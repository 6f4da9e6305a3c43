"""The self-test sees what it must, and fails where an audit is blind or sees ghosts."""

from __future__ import annotations

import pytest
import torch

from warp_unlearning.attacks.membership import simple
from warp_unlearning.attacks.membership.base import Batch
from warp_unlearning.workflows import selftest as module
from warp_unlearning.workflows.planted_leak import PlantedProblem, planted_problem
from warp_unlearning.workflows.selftest import Check, selftest


@pytest.fixture(scope="module")
def problem() -> PlantedProblem:
    return planted_problem(0)


@pytest.mark.long
def test_every_check_holds() -> None:
    seen: list[Check] = []
    checks = selftest(0, watch=seen.append)
    assert tuple(seen) == checks
    assert all(check.holds for check in checks), checks
    assert {check.expected for check in checks} == {"a leak", "no leak"}
    assert all((check.strength.low > 0.5) == (check.expected == "a leak") for check in checks), checks
    found = [check.attack for check in checks if check.expected == "a leak"]
    for attack in (
        "confidence",
        "confidence drop",
        "gradient norm",
        "gradient difference",
        "update alignment",
        "U-LiRA",
    ):
        assert attack in found


def test_a_blind_audit_is_noticed(problem: PlantedProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(simple, "_confidence", lambda model, batch: torch.randn(len(batch.y), generator=generator))
    checks = {(check.what, check.attack): check.holds for check in module._pairs(problem, 0)}
    assert not checks["a model that forgot nothing", "confidence"]
    assert not checks["a model taught other labels", "confidence drop"]
    assert checks["a model that forgot nothing", "gradient norm"]


def test_an_audit_that_sees_ghosts_is_noticed(problem: PlantedProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    def ghosts(model: object, batch: Batch) -> torch.Tensor:
        return (batch.x[:, None] == problem.forget.x).flatten(2).all(2).any(1).double()

    monkeypatch.setattr(simple, "_confidence", ghosts)
    checks = {check.what: check.holds for check in module._pairs(problem, 0)}
    assert not checks["a retrained model against another"]


def test_the_planted_problem_is_what_it_says(problem: PlantedProblem) -> None:
    for examples in (problem.forget, problem.test):
        share = (problem.original(examples.x).argmax(1) == examples.y).float().mean()
        assert float(share) > 0.99 if examples is problem.forget else float(share) < 0.2
    for model in problem.retrained:
        assert float((model(problem.forget.x).argmax(1) == problem.forget.y).float().mean()) < 0.25
        assert float((model(problem.retain.x).argmax(1) == problem.retain.y).float().mean()) > 0.99
