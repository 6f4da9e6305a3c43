"""Attacks by name, from files and as objects; pairs of models; and what a plug-in may do wrong."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.membership.base import (
    Batch,
    Pair,
    are_identical,
    check_pair,
    compared_parameters,
    device_of,
)
from warp_unlearning.attacks.membership.pair_scores import ATTACKS, PairScorer, as_attack, register
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import SmallResNet

LOSS = """
import torch.nn.functional as F

class LossGap:
    name = "loss gap"
    needs = "both outputs"

    def score(self, pair, batch):
        losses = [F.cross_entropy(batch.logits_of(m), batch.y, reduction="none") for m in (pair.original, pair.new)]
        return losses[1] - losses[0]
"""


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 3)).double().eval()


def points(count: int, seed: int = 1) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorExamples(x, torch.arange(count) % 3)


def scorer(original: nn.Module, count: int = 7) -> PairScorer:
    return PairScorer(original, candidates=points(count), background=points(9, 2), probes=points(5, 3))


class Given:
    """An attack whose score is a function."""

    def __init__(self, score: Callable[[Pair, Batch], Any], needs: Any = "new outputs", name: Any = "given") -> None:
        self.name, self.needs, self.score = name, needs, score


def test_a_plug_in_of_a_file_scores_beside_ours(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(LOSS)
    one, other = network(0), network(1)
    attacks = [as_attack(f"{file}:LossGap"), as_attack("confidence drop")]
    found, not_tried = scorer(one, 300).score({"new": other}, attacks)
    assert ([each.name for each in found], not_tried) == (["loss gap", "confidence drop"], {})
    some = points(300)
    losses = [F.cross_entropy(m(some.x), some.y, reduction="none").detach() for m in (one, other)]
    np.testing.assert_allclose(found[0].scores["new"], losses[1] - losses[0], rtol=1e-12, atol=1e-12)


def test_attacks_have_names_and_unknown_ones_an_error() -> None:
    assert {"accuracy", "confidence", "gradient norm", "update alignment", "ggd"} <= set(ATTACKS)
    assert all(as_attack(name).name == name for name in ATTACKS)
    with pytest.raises(InputError, match="no attack 'acuracy'; did you mean 'accuracy'"):
        as_attack("acuracy")
    with pytest.raises(InputError, match="an attack 'accuracy' already"):
        register("accuracy", type(as_attack("accuracy")))


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (Given(lambda p, b: b.y, name=3), "is a Given without `name`; add it"),
        (Given(lambda p, b: b.y, name=3, needs=None), "is a Given without `name` and `needs`; add it"),
        (type(as_attack("accuracy")), "is a class; give an object of it, with `name`, `needs` and `score`"),
        (Given(lambda p, b: b.y, needs="everything"), "needs 'everything'; it must be one of new outputs, new weights"),
    ],
)
def test_what_is_no_attack(attack: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        as_attack(attack)


def broken(pair: Pair, batch: Batch) -> Tensor:
    raise ZeroDivisionError("of zero")


def nan(pair: Pair, batch: Batch) -> Tensor:
    return torch.where(batch.x[:, 0] == points(7).x[4, 0], torch.nan, batch.x[:, 0])


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (lambda p, b: b.x, r"the attack given returned a tensor \(7, 4\) for 7 examples; return a tensor \(7,\)"),
        (lambda p, b: 0.5, "the attack given returned a float for 7 examples"),
        (lambda p, b: b.y[:3], r"returned a tensor \(3,\) for 7"),
        (broken, "the attack given failed .*of zero.*; mend its code"),
        (nan, "the attack given gives candidate 4 under the (new|original) model the score nan, as 1 rows in all"),
    ],
)
def test_what_a_plug_in_may_do_wrong(score: Callable[[Pair, Batch], Any], said: str) -> None:
    for needs in ("new outputs", "both weights"):
        with pytest.raises(InputError, match=said):
            scorer(network()).score({"new": network(1)}, [Given(score, needs)])


def test_a_batch_has_the_gradients_and_logits_of_the_original() -> None:
    model, some = network(), points(5)
    batch = Batch(some.x, some.y, model)
    torch.testing.assert_close(batch.logits, model(some.x))
    for i in range(5):
        loss = F.cross_entropy(model(some.x[i : i + 1]), some.y[i : i + 1])
        expected = torch.autograd.grad(loss, list(model.parameters()))
        for g, (name, found) in zip(expected, batch.gradients.items(), strict=True):
            torch.testing.assert_close(found[i], g)
            assert float(batch.squared_norms[name][i]) == pytest.approx(float(g.square().sum()), rel=1e-10)


def test_steps_together_score_as_each_alone() -> None:
    one, other = network(0), network(1)
    steps, attacks = ("naive", "span", "scale-free", "input-layer"), ("gradient difference", "update alignment")
    together, _ = scorer(one).score({"a": other, "b": network(2)}, [as_attack(a) for a in attacks], steps=steps)
    assert [each.name for each in together] == [
        name if step == "naive" else f"{name} after {step}" for name in attacks for step in steps
    ]
    for each in together:
        alone, _ = scorer(one).score({"a": other}, [as_attack(each.attack.name)], steps=(each.step,))
        np.testing.assert_allclose(each.scores["a"], alone[0].scores["a"], rtol=1e-9, atol=1e-12)


def test_models_are_left_as_they_are() -> None:
    one, other = network(0), network(1)
    other.train()
    next(other.parameters()).requires_grad_(False)
    before = [{name: value.clone() for name, value in m.state_dict().items()} for m in (one, other)]
    scorer(one).score({"new": other}, [as_attack(name) for name in ATTACKS if name != "ggd"], steps=("naive", "span"))
    for model, state in zip((one, other), before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
    assert other.training
    assert [p.requires_grad for p in other.parameters()] == [False] + [True] * 5


def test_frozen_parameters_have_no_part_in_gradients() -> None:
    one, other = network(0), network(1)
    assert len(compared_parameters(one)) == 6
    one.requires_grad_(False)
    assert len(compared_parameters(one)) == 6  # none is trainable: all are compared
    one[3].requires_grad_(True)
    assert compared_parameters(one) == ("3.weight", "3.bias")
    (found,), _ = scorer(one).score({"new": other}, [as_attack("update alignment")])
    some, pair = points(7), [dict(m.named_parameters()) for m in (one, other)]
    for i in range(7):
        loss = F.cross_entropy(one(some.x[i : i + 1]), some.y[i : i + 1])
        g = torch.cat([v.flatten() for v in torch.autograd.grad(loss, [one[3].weight, one[3].bias])])
        d = torch.cat([(pair[1][n] - pair[0][n]).detach().flatten() for n in ("3.weight", "3.bias")])
        assert found.scores["new"][i] == pytest.approx(float(g @ d / g.norm() / d.norm()), abs=1e-12)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (SmallResNet(width=3), "has shape"),
        (SmallResNet(width=2).double(), "has type"),
        (nn.Linear(3, 2), "of the state dict are in one of the two models only"),
    ],
)
def test_pairs_that_do_not_match(other: nn.Module, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_pair(SmallResNet(width=2), other)


def test_weights_tied_in_one_model_only() -> None:
    one = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    other = deepcopy(one)
    other["b"].weight = other["a"].weight
    with pytest.raises(InputError, match="tie or order"):
        check_pair(one, other)
    with pytest.raises(InputError, match="spread over"):
        device_of(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")]), what="original")


def test_identical_means_every_entry() -> None:
    one = network()
    other = deepcopy(one)
    assert are_identical(one, other)
    other[2].running_mean += 1
    assert not are_identical(one, other)
