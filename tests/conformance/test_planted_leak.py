"""The self-test sees what it must, and fails where an audit is blind or sees ghosts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning import PairAudit, audit_pair
from warp_unlearning.conformance.planted_leak import (
    Check,
    PlantedProblem,
    pair_checks,
    planted_problem,
    selftest,
    stepped_up,
)
from warp_unlearning.data.examples import TensorExamples


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


def test_a_blind_audit_is_noticed(problem: PlantedProblem) -> None:
    def blind(
        original: nn.Module, unlearned: nn.Module, *, forget: Any, test: TensorExamples, **more: Any
    ) -> PairAudit:
        """Compares never-seen examples with others."""
        some, rest = torch.arange(len(forget)), torch.arange(len(forget), len(test))
        return audit_pair(original, unlearned, forget=test.select(some), test=test.select(rest), **more)

    checks = list(pair_checks(problem, audit=blind))
    held = {(check.what, check.attack): check.holds for check in checks}
    assert not held["a model that forgot nothing", "confidence"]
    assert not held["a model that forgot nothing", "gradient norm"]
    assert not held["a model taught other labels", "confidence drop"]
    assert held[
        "a retrained model against another", next(k for w, k in held if w == "a retrained model against another")
    ]


def test_an_audit_that_sees_ghosts_is_noticed(problem: PlantedProblem) -> None:
    def ghosts(original: nn.Module, unlearned: nn.Module, **given: Any) -> PairAudit:
        return audit_pair(problem.original, stepped_up(problem.original, problem.retain, length=0.01), **given)

    held = {check.what: check.holds for check in pair_checks(problem, audit=ghosts)}
    assert not held["a retrained model against another"]


def test_the_planted_problem_is_what_it_says(problem: PlantedProblem) -> None:
    for examples in (problem.forget, problem.test):
        share = (problem.original(examples.x).argmax(1) == examples.y).float().mean()
        assert float(share) > 0.99 if examples is problem.forget else float(share) < 0.2
    for model in problem.retrained:
        assert float((model(problem.forget.x).argmax(1) == problem.forget.y).float().mean()) < 0.25
        assert float((model(problem.retain.x).argmax(1) == problem.retain.y).float().mean()) > 0.99
