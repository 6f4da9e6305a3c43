from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.gradients.single import ODD, looped
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.per_sample import clipped_mean_gradient, each_gradient, per_sample_gradients
from warp_unlearning.models.networks import MLP, ResNet18, SmallResNet


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


@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_clipped_mean(model: SmallResNet, chunk: int) -> None:
    x, y = examples()
    alone = {name: g.detach() for name, g in looped(model, x, y).items()}
    norms = torch.cat([g.flatten(1) for g in alone.values()], 1).norm(dim=1)
    clip = float(norms.sort().values[3]) * 1.01
    assert int((norms > clip).sum()) == 3
    found, loss = clipped_mean_gradient(model, x, y, clip=clip, chunk=chunk)
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
    for name, gradients in alone.items():
        expected = sum(g * min(1.0, clip / float(norm)) for g, norm in zip(gradients, norms, strict=True)) / len(y)
        torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-13)


def test_a_gradient_of_zero_stays_zero() -> None:
    model = nn.Linear(4, 1).double()
    x = torch.ones(3, 4, dtype=torch.float64)
    found, _ = clipped_mean_gradient(model, x, torch.zeros(3, dtype=torch.int64), clip=1.0)
    assert all(bool((g == 0).all()) for g in found.values())


def of_images(model: nn.Module, shape: tuple[int, ...]) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (model, torch.randn(5, *shape, generator=torch.Generator().manual_seed(1)))


CASES = {
    "small": of_images(SmallResNet(width=4), (1, 8, 8)),
    "resnet18, stem with dead taps": of_images(ResNet18(width=4, stem="imagenet"), (3, 32, 32)),
    "mlp": of_images(MLP(inputs=6, hidden=(5,), classes=6), (6,)),
    "in place": of_images(nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)), (6,)),
}
TWICE = nn.Linear(6, 6)
CASES["a module of two places"] = of_images(nn.Sequential(TWICE, nn.Tanh(), TWICE), (6,))


@pytest.mark.parametrize("case", [*CASES, "Tied", "Twice", "Folded", "WithoutRules"])
def test_every_example_has_the_gradient_it_has_alone(case: str) -> None:
    model, x = of_images(ODD[case](), (6,))() if case in ODD else CASES[case]()
    model, x = model.double().eval(), x.double()
    next(iter(model.parameters())).requires_grad_(case in ODD)
    y = torch.arange(5) % 6
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = dict(each_gradient(model, x, y))
    by_vmap, losses = per_sample_gradients(model, x, y)
    torch.testing.assert_close(losses, F.cross_entropy(model(x), y, reduction="none"))
    assert list(found) == list(by_vmap) == [name for name, p in model.named_parameters() if p.requires_grad]
    for name, truth in looped(model, x, y).items():
        torch.testing.assert_close(found[name], truth.detach(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(by_vmap[name], truth.detach(), rtol=1e-9, atol=1e-12)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None and isinstance(p, nn.Parameter) for p in model.parameters())
    assert all(not g.requires_grad for g in found.values())


def test_without_grad_mode() -> None:
    model = nn.Linear(3, 2).double()
    x, y = torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    with torch.no_grad():
        inside = dict(each_gradient(model, x, y))
    outside = dict(each_gradient(model, x, y))
    assert all(torch.equal(inside[name], outside[name]) for name in outside)
    assert float(outside["weight"].abs().sum()) > 0


def test_an_input_that_is_written_over_is_refused() -> None:
    with pytest.raises(InputError, match="input of layer is written over"):
        list(each_gradient(ODD["Overwriting"](), torch.ones(2, 6), torch.tensor([0, 1])))


def test_vmap_over_some_of_the_parameters() -> None:
    model = MLP(inputs=6, hidden=(5,), classes=6).double()
    x, y = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(4)
    every, losses = per_sample_gradients(model, x, y)
    some, same = per_sample_gradients(model, x, y, names={"layers.0.bias"})
    assert list(some) == ["layers.0.bias"]
    torch.testing.assert_close(some["layers.0.bias"], every["layers.0.bias"])
    torch.testing.assert_close(same, losses)
