from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning import ChangeOfBasis, Conjugate, Permutation, Warp, unlearn
from warp_unlearning.conformance.problem import Problem
from warp_unlearning.methods.registry import BUILT_IN, make_method
from warp_unlearning.unlearning import Unlearned

SHORT: dict[str, dict[str, Any]] = {
    "srf_on": {"iterations": 4, "slow": 0.7},
    "pgu": {"epochs": 3, "energy": 0.5, "stop": False, "momentum": 0.5},
    "ngp": {"epochs": 2, "batch_size": 16, "anchor": 0.5, "momentum": 0.9, "weight_decay": 0.01},
    "salun": {"epochs": 2, "weight_decay": 0.01},
    "scrub": {"epochs": 2, "rewind": True},
    **{name: {"epochs": 2} for name in ("bad_teacher", "retrain", "finetune", "langevin")},
}
METHODS = [pytest.param(name, marks=pytest.mark.filterwarnings("ignore:langevin")) for name in BUILT_IN]
pytestmark = pytest.mark.filterwarnings("ignore:scrub left the model bit-identical")


def run(problem: Problem, method: str, defense: Any, seed: int | None = 0) -> Unlearned:
    return unlearn(
        problem.original,
        forget=problem.forget,
        retain=problem.retain,
        validation=problem.validation,
        method=make_method(method, **SHORT[method]),
        defense=defense,
        defense_seed=None if defense is None else seed,
    )


@pytest.fixture(scope="module")
def plain(noise: Problem) -> dict[str, Unlearned]:
    """Every method without a defence, found when asked for."""

    class Found(dict[str, Unlearned]):
        def __missing__(self, name: str) -> Unlearned:
            self[name] = run(noise, name, None)
            return self[name]

    return Found()


def logits(problem: Problem, model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        model.eval()
        return model(torch.cat([problem.forget.x, problem.retain.x, problem.validation.x]))


@pytest.mark.parametrize("defense", ["warp", "fastwarp", "cob", "conjugate"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_under_every_defence(
    kit: Any, noise: Problem, plain: dict[str, Unlearned], name: str, defense: str
) -> None:
    before = kit.state(noise.original)
    result = run(noise, name, defense)
    assert kit.same(kit.state(noise.original), before)
    after = result.model.state_dict()
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    assert all(bool(t.isfinite().all()) for t in after.values())
    # Fresh weights are further from the original than the radius, from where null-space moves lead no further.
    stays = name == "retrain" and defense in ("warp", "fastwarp")
    assert kit.same(kit.state(plain[name].model), kit.state(result.model)) == stays
    assert [row["update"] for row in result.history] == [row["update"] for row in plain[name].history]
    assert result.teleports
    for certificate in result.teleports:
        json.dumps(certificate.as_json(), allow_nan=False)
        if defense in ("cob", "conjugate"):
            assert certificate.retain.relative < 1e-10
            assert certificate.held_out.relative < 1e-10
            assert certificate.relative_move > 0.3
        else:
            assert (certificate.moved == 0) == (stays or certificate.scale == 0)
            assert stays == any(note.startswith("nothing moved") for note in certificate.notes)
            assert certificate.scale in (0.0, *(0.5**k for k in range(5)))
    if defense == "cob":
        assert len(result.teleports) == 1
        assert result.history == plain[name].history
        expected = logits(noise, plain[name].model)
        torch.testing.assert_close(logits(noise, result.model), expected, rtol=1e-9, atol=1e-9)
    elif defense == "conjugate":
        assert len(result.teleports) == 2
    assert result.record.deletions[0].experiment_only
    assert result.record.deletions[0].defense["name"] == ("conjugate" if defense == "conjugate" else "warp")


@pytest.mark.parametrize("name", METHODS)
def test_what_plain_optimizers_commute_with_changes_nothing(
    noise: Problem, plain: dict[str, Unlearned], name: str
) -> None:
    """Permutations, after every update or around all of them: the method arrives at the same function. Noise that is
    drawn for weights in their order falls on others.
    """
    expected = logits(noise, plain[name].model)
    for defense in (Warp(Permutation(), every=1), Conjugate(Permutation())):
        result = run(noise, name, defense)
        if name == "langevin" or (name == "retrain" and isinstance(defense, Conjugate)):
            assert bool(logits(noise, result.model).isfinite().all())
            continue
        assert [row.keys() for row in result.history] == [row.keys() for row in plain[name].history]
        for row, other in zip(result.history, plain[name].history, strict=True):
            assert row == pytest.approx(other, rel=1e-6, abs=1e-9)
        torch.testing.assert_close(logits(noise, result.model), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_a_change_of_basis_at_the_end_is_the_only_trace(
    kit: Any, noise: Problem, plain: dict[str, Unlearned], name: str
) -> None:
    """Whatever the method keeps, the last move is on the weights it ends with."""
    result = run(noise, name, Warp(ChangeOfBasis(spread=0.5), every="end"), seed=None)
    torch.testing.assert_close(logits(noise, result.model), logits(noise, plain[name].model), rtol=1e-9, atol=1e-9)
    assert not result.record.deletions[0].experiment_only
