from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.gradients.per_sample import clipped_mean_gradient, per_sample_gradients
from warp_unlearning.models.networks import SmallResNet


def examples(count: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


@pytest.fixture
def model() -> SmallResNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SmallResNet(classes=3, width=4).double()
        network(torch.randn(16, 1, 8, 8, dtype=torch.float64))
    network.conv1.requires_grad_(False)
    return network.eval()


def gradients_by_loop(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    found = []
    for i in range(len(y)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    return found


def test_each_example_has_the_gradient_it_has_alone(model: SmallResNet) -> None:
    x, y = examples()
    found, losses = per_sample_gradients(model, x, y)
    expected = gradients_by_loop(model, x, y)
    torch.testing.assert_close(losses, F.cross_entropy(model(x), y, reduction="none"))
    assert set(found) == set(expected[0]) == {n for n, p in model.named_parameters() if p.requires_grad}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, torch.stack([one[name] for one in expected]), rtol=1e-10, atol=1e-12)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_clipped_mean(model: SmallResNet, chunk: int) -> None:
    x, y = examples()
    alone = gradients_by_loop(model, x, y)
    norms = [float(torch.cat([g.flatten() for g in one.values()]).norm()) for one in alone]
    clip = sorted(norms)[3] * 1.01
    assert sum(norm > clip for norm in norms) == 3
    found, loss = clipped_mean_gradient(model, x, y, clip=clip, chunk=chunk)
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
    for name in alone[0]:
        total = torch.zeros_like(alone[0][name])
        for one, norm in zip(alone, norms, strict=True):
            total += one[name] * (clip / norm if norm > clip else 1.0)
        torch.testing.assert_close(found[name], total / len(y), rtol=1e-10, atol=1e-13)


def test_a_gradient_of_zero_stays_zero() -> None:
    model = nn.Linear(4, 1).double()
    x = torch.ones(3, 4, dtype=torch.float64)
    found, _ = clipped_mean_gradient(model, x, torch.zeros(3, dtype=torch.int64), clip=1.0)
    assert all(bool((g == 0).all()) for g in found.values())


def test_tied_weights_collect_the_gradients_of_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    model = Tied().double()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0])
    found, expected = per_sample_gradients(model, x, y)[0], gradients_by_loop(model, x, y)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, torch.stack([one[name] for one in expected]))


def test_a_module_that_appears_twice_is_left_as_it_was() -> None:
    layer = torch.nn.Linear(3, 3).double()
    model = torch.nn.Sequential(layer, torch.nn.Tanh(), layer)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    gradients, _ = per_sample_gradients(model, x, y)
    for i in range(4):
        loss = torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        for name, expected in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            torch.testing.assert_close(gradients[name][i], expected, rtol=1e-10, atol=1e-12)
    assert all(isinstance(p, torch.nn.Parameter) for p in (layer.weight, layer.bias))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
