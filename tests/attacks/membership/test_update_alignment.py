from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from warp_unlearning.attacks.membership.base import Batch, Pair
from warp_unlearning.attacks.membership.update_alignment import UpdateAlignment, unit_update, update_alignment
from warp_unlearning.attacks.undo import make_pre_step
from warp_unlearning.attacks.undo.base import Held
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.errors import InputError
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


def aligned(
    model: nn.Module, update: dict[str, Tensor], x: Tensor, y: Tensor, *, by_kernel: bool = False
) -> NDArray[np.float64]:
    gradients = Batch(x, y, model).gradients
    found = update_alignment(gradients, unit_update(update, gradients, by_kernel=by_kernel), by_kernel=by_kernel)
    return found.numpy()


def test_scores_are_those_of_a_loop_over_examples() -> None:
    model, x, y = network(), normal(7, 1, 8, 8, seed=50), torch.arange(7) % 4
    whole = {n: normal(*p.shape, seed=70) for n, p in model.named_parameters()}
    zeros = {n: torch.zeros_like(v) if n.startswith("layer2") else v for n, v in whole.items()}
    holed = {n: torch.where(v > 0, v, 0.0) if v.dim() < 4 else v for n, v in whole.items()}
    part = {"fc.weight": whole["fc.weight"], "fc.bias": -whole["fc.bias"]}
    found = {
        name: aligned(model, update, x, y)
        for name, update in {"whole": whole, "zeros": zeros, "part": part, "holed": holed}.items()
    }
    kernels = aligned(model, holed, x, y, by_kernel=True)
    for i in range(7):
        g = gradient(model, x[i : i + 1], y[i : i + 1])
        assert found["whole"][i] == pytest.approx(cosine(whole, g, list(whole)), abs=1e-12)
        left = [n for n in whole if not n.startswith("layer2")]
        assert found["zeros"][i] == pytest.approx(cosine(whole, g, left), abs=1e-12)
        assert found["part"][i] == pytest.approx(cosine(part, g, list(part)), abs=1e-12)
        assert found["holed"][i] == pytest.approx(cosine(holed, g, list(holed)), abs=1e-12)
        assert kernels[i] == pytest.approx(kernel_cosines(holed, g), abs=1e-12)


def test_the_sign_says_whose_loss_rose() -> None:
    model, x, y = network(), normal(6, 1, 8, 8, seed=3), torch.arange(6) % 4
    for i in range(6):
        g = gradient(model, x[i : i + 1], y[i : i + 1])
        assert aligned(model, g, x[i : i + 1], y[i : i + 1]) == pytest.approx([1.0])
        assert aligned(model, {n: -v for n, v in g.items()}, x[i : i + 1], y[i : i + 1]) == pytest.approx([-1.0])


def test_a_short_update_keeps_the_precision_of_the_gradients() -> None:
    model, x, y = network(), normal(5, 1, 8, 8, seed=3), torch.arange(5) % 4
    update = {n: 1e-30 * normal(*p.shape, seed=9) for n, p in model.named_parameters()}
    exact = aligned(model, update, x, y)
    coarse = aligned(deepcopy(model).float(), update, x.float(), y)
    assert 1e-12 < np.abs(coarse - exact).max() < 1e-4


def test_nothing_is_aligned_with_nothing() -> None:
    model, x, y = network(), normal(3, 1, 8, 8), torch.arange(3)
    nothing = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for by_kernel in (False, True):
        assert aligned(model, nothing, x, y, by_kernel=by_kernel).tolist() == [0.0, 0.0, 0.0]


def test_an_update_of_another_shape_is_refused() -> None:
    model, x, y = network(), normal(3, 1, 8, 8), torch.arange(3)
    with pytest.raises(InputError, match=r"'fc.bias' of the update has shape \(5,\) and the original \(4,\)"):
        aligned(model, {"fc.bias": torch.zeros(5)}, x, y)


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
    others = torch.arange(500, 800)
    candidates = torch.cat([worst, others])
    batch, some = Batch(x[candidates], y[candidates], model), TensorExamples(x[:2], y[:2])
    area = {}
    for step in ("naive", "canonical"):
        undone = make_pre_step(step).prepared(held)(state)
        scores = UpdateAlignment().score(Pair(model, unlearned, some, some, step, undone), batch)
        area[step] = roc(scores[: len(worst)], scores[len(worst) :]).auc
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
