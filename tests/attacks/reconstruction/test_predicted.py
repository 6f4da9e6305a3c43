from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.predicted import Predictor, in_groups, size_of
from warp_unlearning.attacks.reconstruction.threat import Schedule


def names_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_without_a_schedule_it_is_the_gradient_of_the_mean_loss(kit: Any, norm: bool, count: int) -> None:
    model = kit.net(norm=norm)
    x, y = kit.digits(2 * count)
    x, y = x.reshape(2, count, 1, 8, 8), y.reshape(2, count)
    found = Predictor(model, names_of(model))(x, y)
    for i in range(2):
        for name, g in kit.gradient(model, x[i], y[i]).items():
            torch.testing.assert_close(found[name][i], g, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("descent", [0.0, 0.6])
@pytest.mark.parametrize("norm", [False, True])
def test_with_a_schedule_it_is_the_difference_of_those_steps(kit: Any, steps: int, descent: float, norm: bool) -> None:
    model, count = kit.net(norm=norm), 2
    x, y = kit.digits(2 * count)
    x, y = x.reshape(2, count, 1, 8, 8), y.reshape(2, count)
    retain = kit.digits(5, first=50)
    schedule = Schedule(steps, 0.3, ascent=0.8, descent=descent)
    found = Predictor(model, names_of(model), schedule, retain if descent else None)(x, y)
    for i in range(2):
        after = kit.stepped(
            model, x[i], y[i], rate=0.3, steps=steps, ascent=0.8, descent=descent, retain=retain if descent else None
        )
        truth = kit.difference(model, after)
        one = {name: value[i] for name, value in found.items()}
        # Of one step no more than the direction is promised.
        assert kit.cosine(one, truth) == pytest.approx(1, abs=1e-12)
        if steps > 1:
            for name, value in truth.items():
                torch.testing.assert_close(one[name], value, rtol=1e-8, atol=1e-12)


def test_steps_are_not_one_long_step(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    three = kit.difference(model, kit.stepped(model, x, y, rate=0.3, steps=3))
    assert kit.cosine(kit.gradient(model, x, y), three) < 0.999


def test_unrolled_steps_are_differentiable_in_the_inputs(kit: Any) -> None:
    model = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Softplus(), nn.Linear(5, 10)))
    predictor = Predictor(model, names_of(model), Schedule(2, 0.4))
    x, y = kit.digits(2)

    def height(images: Tensor) -> Tensor:
        found = predictor(images[:, None], y[:, None])
        return torch.stack(
            [(v * torch.linspace(-1, 1, v.numel()).double().reshape(v.shape)).sum() for v in found.values()]
        ).sum()

    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(height(x), x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        numeric = (height(x + 1e-5 * direction) - height(x - 1e-5 * direction)) / 2e-5
    assert float((slope * direction).sum()) == pytest.approx(float(numeric), rel=1e-6)


@pytest.mark.parametrize("steps", [1, 2])
def test_some_names_alone_while_all_weights_step(kit: Any, steps: int) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    found = Predictor(model, ["second.weight"], Schedule(steps, 0.3))(x[None], y[None])
    assert list(found) == ["second.weight"]
    if steps == 1:
        truth = kit.gradient(model, x, y)["second.weight"]
        torch.testing.assert_close(found["second.weight"][0], truth, rtol=1e-9, atol=1e-12)


def test_a_weight_that_two_layers_share_steps_as_one(kit: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flatten, self.first, self.second = nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.relu(self.first(self.flatten(x))))

    model = kit.drawn(Tied)
    x, y = kit.digits(1)
    found = Predictor(model, names_of(model), Schedule(3, 0.3))(x[None], y[None])
    truth = kit.difference(model, kit.stepped(model, x, y, rate=0.3, steps=3))
    for name, value in truth.items():
        torch.testing.assert_close(found[name][0], value, rtol=1e-8, atol=1e-12)


def test_the_model_is_left_as_it_was(kit: Any) -> None:
    model = kit.net(norm=True)
    before, places = {n: v.clone() for n, v in model.state_dict().items()}, dict(model.named_parameters())
    x, y = kit.digits(2)
    Predictor(model, names_of(model), Schedule(3, 0.3))(x[:, None], y[:, None])
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all(p is places[n] for n, p in model.named_parameters())


def test_sizes_groups_and_repeats(kit: Any) -> None:
    model = nn.Linear(3, 2)
    assert size_of(model, ["weight", "bias"]) == 8
    assert size_of(model, ["bias"]) == 2
    values = torch.arange(12).reshape(6, 2)
    assert in_groups({"w": values}, 3)["w"].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
