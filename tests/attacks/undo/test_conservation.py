from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.attacks.undo.base import Held, NotApplicable, difference
from warp_unlearning.attacks.undo.channels import rescaled
from warp_unlearning.attacks.undo.conservation import Conservation, ConservationLaw
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.models.networks import SmallResNet


class Preactivated(nn.Module):
    """A batch norm that reads a stream which others read too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 1), nn.Linear(3, 4)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        stream = stream + self.inner(F.relu(self.norm(stream)))
        out: Tensor = self.head(F.relu(stream).mean((2, 3)))
        return out


def networks(kit, kind: str, seed: int) -> nn.Module:
    if kind == "preactivated":
        return kit.settled(Preactivated(), seed)
    norm, inner = kind.split()
    return kit.residual(seed, norm=norm, inner=inner)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from(["preactivated", "none plain", "affine grouped", "affine depthwise", "bare plain", "none grouped"]),
)
def test_gradients_obey_the_law_and_others_do_not(kit, seed, kind) -> None:
    model = networks(kit, kind, seed)
    law = ConservationLaw(kit.held(model, 3))
    gradient = kit.gradient(model, *kit.points(3, seed=seed + 1))
    ones = gradient["stem.bias"].new_zeros(law.channels.free + 1)
    total, _, size = law.violations(law.flows(gradient), ones)
    assert float((total / size).abs().max()) < 1e-9
    off, _, size = law.violations(law.flows(kit.conjugated(model, gradient, spread=0.5, seed=seed)), ones)
    assert float((off / size).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["preactivated", "affine grouped", "bare plain"])
def test_slopes_are_those_of_autograd(kit, kind) -> None:
    model = networks(kit, kind, 0)
    law = ConservationLaw(kit.held(model, 3))
    gradient = kit.gradient(model, *kit.points(3))

    ones = law.channels.embedded(kit.normal(law.channels.free) * 0)

    def rescaled_first(free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return law.violations(law.flows(rescaled(law.channels, gradient, law.channels.embedded(free))), ones)

    def total(free: Tensor) -> Tensor:
        return rescaled_first(free)[0]

    at = 0.3 * kit.normal(law.channels.free)
    found = law.violations(law.flows(gradient), law.channels.embedded(at))
    slope = found[1]
    for one, other in zip(found, rescaled_first(at), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(slope, torch.autograd.functional.jacobian(total, at), rtol=1e-7, atol=1e-12)


def test_it_solves_for_the_factors_of_a_conjugated_step(kit) -> None:
    data = load_data()
    model = SmallResNet(width=8)
    kit.settled(model, 100)
    x, y = data.train.x.double(), data.train.y
    trained(model, x[:600], y[:600])
    held = Held(model, (x[700:956], y[700:956]))
    undo = Conservation().prepared(held)
    worst = F.cross_entropy(model(x[:600]), y[:600], reduction="none").argsort(descending=True)[:2]
    for i in worst.tolist():
        gradient = kit.gradient(model, x[i : i + 1], y[i : i + 1])
        step = kit.conjugated(model, gradient, spread=0.8, seed=i)
        found = difference(model, undo(kit.stepped(model, step, 1e-3).state_dict()))
        assert kit.cosine(step, gradient) < 0.6
        assert kit.cosine(found, gradient) > 0.9
        assert abs(kit.norm(found) - 1e-3) < 1e-9


def trained(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """A few epochs, so that gradients of examples look like each other."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100)
    model.train()
    for _ in range(6):
        for batch in torch.randperm(len(y), generator=generator).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    model.eval()


def test_without_free_channels_it_is_not_applicable(kit) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2))
    with pytest.raises(NotApplicable, match="GELU"):
        Conservation().prepared(Held(model, kit.points(2, shape=(2,), classes=2)))
