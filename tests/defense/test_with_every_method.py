from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import Conjugate, Permutation, unlearn
from warp_unlearning.conformance.problem import Problem
from warp_unlearning.methods.registry import BUILT_IN, make_method
from warp_unlearning.unlearning import Unlearned

SHORT: dict[str, dict[str, Any]] = {
    "srf_on": {"iterations": 4, "strict_mask": True},
    "pgu": {"epochs": 3, "energy": 0.5, "stop": False, "momentum": 0.5},
    "ngp": {"epochs": 2, "batch_size": 16, "anchor": 0.5, "momentum": 0.9, "weight_decay": 0.01},
    "salun": {"epochs": 2, "weight_decay": 0.01},
    "scrub": {"epochs": 2, "rewind": True},
    **{name: {"epochs": 2} for name in ("bad_teacher", "retrain", "finetune", "langevin")},
}
METHODS = [pytest.param(name, marks=pytest.mark.filterwarnings("ignore:langevin")) for name in BUILT_IN]
pytestmark = pytest.mark.filterwarnings("ignore:scrub left the model bit-identical")


def run(problem: Problem, method: str, defense: Any) -> Unlearned:
    return unlearn(
        problem.original,
        forget=problem.forget,
        retain=problem.retain,
        validation=problem.validation,
        method=make_method(method, **SHORT[method]),
        defense=defense,
        defense_seed=None if defense is None else 0,
    )


@cache
def plain(problem: Problem, method: str) -> Unlearned:
    """Without a defence."""
    return run(problem, method, None)


def logits(problem: Problem, model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(torch.cat([problem.forget.x, problem.retain.x, problem.validation.x]))


@pytest.mark.filterwarnings("ignore:NullSpace does little")  # What warp_guarded protects leaves half of the weights.
@pytest.mark.parametrize("defense", ["warp", "fastwarp", "warp_guarded", "cob", "conjugate"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_under_every_defence(kit: Any, noise: Problem, name: str, defense: str) -> None:
    before = kit.state(noise.original)
    result = run(noise, name, defense)
    assert kit.same(kit.state(noise.original), before)
    after = result.model.state_dict()
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    assert all(bool(t.isfinite().all()) for t in after.values())
    assert [row["update"] for row in result.history] == [row["update"] for row in plain(noise, name).history]
    assert len(result.teleports) == {"cob": 1, "conjugate": 2}.get(defense, len(result.teleports)) > 0
    for certificate in result.teleports:
        json.dumps(certificate.as_json(), allow_nan=False)
        assert certificate.scale in (0.0, 1.0)
        assert (certificate.moved == 0) == (certificate.scale == 0)
        if defense in ("cob", "conjugate"):
            assert max(certificate.retain.relative, certificate.held_out.relative) < 1e-10
            assert certificate.relative_move > 0.3
    if defense == "cob":  # After the last update: the function is the method's.
        assert result.history == plain(noise, name).history
        expected = logits(noise, plain(noise, name).model)
        torch.testing.assert_close(logits(noise, result.model), expected, rtol=1e-9, atol=1e-9)
    assert not kit.same(kit.state(plain(noise, name).model), kit.state(result.model))


@pytest.mark.parametrize("name", METHODS)
def test_conjugation_by_a_permutation_changes_nothing(noise: Problem, name: str) -> None:
    """Plain optimizers commute with it, except where draws in the order of the weights fall on others."""
    result = run(noise, name, Conjugate(Permutation()))
    assert bool(logits(noise, result.model).isfinite().all())
    if name not in ("langevin", "retrain"):
        for row, other in zip(result.history, plain(noise, name).history, strict=True):
            assert row == pytest.approx(other, rel=1e-6, abs=1e-9)
        expected = logits(noise, plain(noise, name).model)
        torch.testing.assert_close(logits(noise, result.model), expected, rtol=1e-6, atol=1e-7)
