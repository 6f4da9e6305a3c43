from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.membership import update_alignment as module
from warp_unlearning.attacks.membership.update_alignment import update_alignment
from warp_unlearning.attacks.undo import Held, difference, make_pre_step
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.networks import MLP, SmallResNet
from warp_unlearning.stats.roc import roc
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network() -> nn.Module:
    model = SmallResNet(width=3, classes=4).double()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(normal(*p.shape, seed=i) / (p[0].numel() ** 0.5 if p.dim() > 1 else 1))
    return model.eval()


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(named.values()))
    return dict(zip(named, found, strict=True))


def cosine(one: dict[str, Tensor], other: dict[str, Tensor], names: list[str]) -> float:
    a, b = (torch.cat([weights[name].flatten() for name in names]) for weights in (one, other))
    return float(a @ b / (a.norm() * b.norm()))


def kernel_cosines(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    total, count = 0.0, 0
    for name, value in one.items():
        a, b = (w.flatten(2).flatten(0, 1) if w.dim() > 2 else w.reshape(-1, 1) for w in (value, other[name]))
        for u, v in zip(a, b, strict=True):
            if bool(u.any()):
                count += 1
                total += float(u @ v / (u.norm() * v.norm())) if bool(v.any()) else 0.0
    return total / count


@pytest.mark.parametrize("chunk", [1, 2**27])
def test_scores_are_those_of_a_loop_over_examples(monkeypatch, chunk) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    model, x, y = network(), normal(7, 1, 8, 8, seed=50), torch.arange(7) % 4
    whole = {n: normal(*p.shape, seed=70) for n, p in model.named_parameters()}
    zeros = {n: torch.zeros_like(v) if n.startswith("layer2") else v for n, v in whole.items()}
    holed = {n: torch.where(v > 0, v, 0.0) if v.dim() < 4 else v for n, v in whole.items()}
    part = {"fc.weight": whole["fc.weight"], "fc.bias": -whole["fc.bias"]}
    given = {"whole": whole, "zeros": zeros, "part": part, "holed": holed, "kernels": holed}
    found = update_alignment(model, given, candidates=(x, y), by_kernel=["kernels"], float64=True)
    assert list(found) == list(given)
    for i in range(7):
        g = gradient(model, x[i : i + 1], y[i : i + 1])
        assert found["whole"][i] == pytest.approx(cosine(whole, g, list(whole)), abs=1e-12)
        left = [n for n in whole if not n.startswith("layer2")]
        assert found["zeros"][i] == pytest.approx(cosine(whole, g, left), abs=1e-12)
        assert found["part"][i] == pytest.approx(cosine(part, g, list(part)), abs=1e-12)
        assert found["holed"][i] == pytest.approx(cosine(holed, g, list(holed)), abs=1e-12)
        assert found["kernels"][i] == pytest.approx(kernel_cosines(holed, g), abs=1e-12)


def test_the_sign_says_whose_loss_rose() -> None:
    model, x, y = network(), normal(6, 1, 8, 8, seed=3), torch.arange(6) % 4
    for i in range(6):
        g = gradient(model, x[i : i + 1], y[i : i + 1])
        found = update_alignment(
            model, {"ascent": g, "descent": {n: -v for n, v in g.items()}}, candidates=(x[i : i + 1], y[i : i + 1])
        )
        assert found["ascent"] == pytest.approx([1.0])
        assert found["descent"] == pytest.approx([-1.0])


def test_precision_is_that_of_the_gradients_asked_for() -> None:
    single, x, y = network().float(), normal(5, 1, 8, 8, seed=3).float(), torch.arange(5) % 4
    delta = {"d": {n: 1e-30 * normal(*p.shape, seed=9) for n, p in single.named_parameters()}}
    exact = update_alignment(deepcopy(single).double(), delta, candidates=(x.double(), y))["d"]
    again = update_alignment(single, delta, candidates=(x, y), float64=True)["d"]
    coarse = update_alignment(single, delta, candidates=(x, y))["d"]
    assert np.abs(again - exact).max() < 1e-13
    assert 1e-12 < np.abs(coarse - exact).max() < 1e-4
    assert next(single.parameters()).dtype == torch.float32


def test_train_mode_and_frozen_parameters_are_the_originals_own_affair() -> None:
    model, x, y = network(), normal(5, 1, 8, 8, seed=3), torch.arange(5) % 4
    delta = {"d": {n: normal(*p.shape, seed=9) for n, p in model.named_parameters()}}
    expected = update_alignment(model, delta, candidates=(x, y))["d"]
    model.train().requires_grad_(False)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    np.testing.assert_array_equal(update_alignment(model, delta, candidates=(x, y))["d"], expected)
    assert model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_nothing_is_aligned_with_nothing() -> None:
    model, x, y = network(), normal(3, 1, 8, 8), torch.arange(3)
    nothing = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    found = update_alignment(model, {"a": nothing, "b": nothing}, candidates=(x, y), by_kernel=["b"])
    assert found["a"].tolist() == found["b"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("differences", "candidates", "by_kernel", "error", "message"),
    [
        ({}, 3, (), InputError, "no difference"),
        ({"d": {"fc.bias": torch.zeros(4)}}, 0, (), DataError, "0 inputs"),
        ({"d": {"fc.bias": torch.zeros(4)}}, 3, ("e",), InputError, "'e'"),
        ({"d": {"fc.bias": torch.zeros(5)}}, 3, (), InputError, r"shape \(5,\)"),
        ({"d": {"other": torch.zeros(5)}}, 3, (), InputError, "no such parameter"),
        ({"d": {"fc.bias": torch.full((4,), torch.nan)}}, 3, (), InputError, "NaN"),
    ],
)
def test_what_cannot_be_aligned_is_refused(differences, candidates, by_kernel, error, message) -> None:
    given = (normal(candidates, 1, 8, 8), torch.zeros(candidates, dtype=torch.long))
    with pytest.raises(error, match=message):
        update_alignment(network(), differences, candidates=given, by_kernel=by_kernel)


def test_candidates_that_are_not_finite_are_refused() -> None:
    x = normal(2, 1, 8, 8)
    x[0, 0, 0, 0] = torch.inf
    with pytest.raises(DataError, match="NaN or infinity"):
        update_alignment(
            network(), {"d": {"fc.bias": torch.zeros(4)}}, candidates=(x, torch.zeros(2, dtype=torch.long))
        )


def test_planted_ascent_is_found_behind_a_change_of_basis() -> None:
    data = load_data()
    x, y = data.train.x, data.train.y
    model = MLP(inputs=64, classes=10, hidden=(32,))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(normal(*p.shape, seed=100 + i) / (p[0].numel() ** 0.5 if p.dim() > 1 else 10))
    train(model, x[:500], y[:500])
    worst = F.cross_entropy(model(x[:500]), y[:500], reduction="none").argsort(descending=True)[:4]
    unlearned = ascended(model, x[worst], y[worst])
    generator = torch.Generator().manual_seed(100)
    for symmetry in (ChangeOfBasis(), Permutation()):
        apply_move(unlearned, symmetry.move(unlearned, generator=generator))
    held = Held(model, (x[900:1100], y[900:1100]))
    state = unlearned.state_dict()
    deltas = {n: difference(model, make_pre_step(n).prepared(held)(state)) for n in ("naive", "canonical")}
    others = torch.arange(500, 800)
    candidates = torch.cat([worst, others])
    scores = update_alignment(model, deltas, candidates=(x[candidates], y[candidates]))
    area = {name: roc(s[: len(worst)], s[len(worst) :]).auc for name, s in scores.items()}
    # The mean gradient is that of the examples of largest loss; those of small loss leave no trace in a single step.
    assert area["canonical"] > 0.9
    assert area["naive"] < 0.8


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100)
    for _ in range(8):
        for batch in torch.split(torch.randperm(len(y), generator=generator), 50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def ascended(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    found = deepcopy(model)
    step = gradient(found, x, y)
    with torch.no_grad():
        for name, p in found.named_parameters():
            p.add_(0.02 * step[name])
    return found


def test_rows_are_gradients_side_by_side() -> None:
    model, x, y = network(), normal(5, 1, 8, 8, seed=3), torch.arange(5) % 4
    named = dict(model.named_parameters())
    delta = {key: {n: normal(*p.shape, seed=seed) for n, p in named.items()} for key, seed in (("a", 9), ("b", 10))}
    expected = update_alignment(model, delta, candidates=(x, y), by_kernel=["b"])
    alignment = module.Alignment(named, delta, by_kernel=["b"])
    rows = [torch.cat([g.flatten() for g in gradient(model, x[i : i + 1], y[i : i + 1]).values()]) for i in range(5)]
    alignment.add_rows(torch.stack(rows[:2]))
    alignment.add_rows(torch.stack(rows[2:]))
    for key, scores in alignment.scores().items():
        np.testing.assert_allclose(scores, expected[key], atol=1e-12)
