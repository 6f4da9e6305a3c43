from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.undoing import Held, NotApplicable
from warp_unlearning.attacks.undoing.channel_factors import (
    Channels,
    all_pinned,
    channel_sums,
    channels_of,
    first_derivatives,
    rescaled,
    second_derivatives,
    with_deviations,
    with_variances,
)

KINDS = [
    ("plain", "affine", False),
    ("grouped", "affine", True),
    ("depthwise", "none", False),
    ("grouped", "bare", True),
]


def logs_of(channels: Channels, seed: int = 3) -> Tensor:
    drawn = torch.randn(channels.free, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return channels.embedded(0.4 * drawn)


@pytest.mark.parametrize(("inner", "norm", "flat"), KINDS)
def test_rescaling_keeps_the_function(kit, inner, norm, flat) -> None:
    model = kit.residual(norm=norm, inner=inner, flat=flat)
    held = kit.held(model)
    channels = channels_of(held)
    assert channels.free >= 12
    values = rescaled(channels, with_deviations(channels, held.weights), logs_of(channels))
    moved = deepcopy(model)
    moved.load_state_dict({**model.state_dict(), **with_variances(channels, values)})
    assert not torch.allclose(moved.stem.weight, model.stem.weight, rtol=0.05)
    torch.testing.assert_close(moved(held.x), model(held.x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("inner", "norm", "flat"), KINDS)
def test_derivatives_are_those_of_autograd(kit, inner, norm, flat) -> None:
    held = kit.held(kit.residual(norm=norm, inner=inner, flat=flat))
    channels = channels_of(held)
    values, at = with_deviations(channels, held.weights), logs_of(channels)

    def total(free: Tensor) -> Tensor:
        return torch.stack([v.sum() for v in rescaled(channels, values, channels.embedded(free)).values()]).sum()

    now = rescaled(channels, values, at)
    slope = torch.autograd.functional.jacobian(total, at[:-1])
    curvature = torch.autograd.functional.hessian(total, at[:-1])
    torch.testing.assert_close(first_derivatives(channels, now), slope)
    torch.testing.assert_close(second_derivatives(channels, now), curvature)


def test_sums_count_a_weight_once_for_each_place(kit) -> None:
    held = Held(kit.settled(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 4))), kit.points(2, shape=(3,)))
    channels = channels_of(held)
    w = held.weights
    expected = w["0.weight"].sum(1) + w["0.bias"] + w["2.weight"].sum(0)
    torch.testing.assert_close(channel_sums(channels, w), expected)


def test_a_variance_without_epsilon_has_power_two(kit) -> None:
    model = kit.settled(
        nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, eps=0.0), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    )
    channels = channels_of(kit.held(model))
    assert channels.offsets == {"1.running_var": 0.0}


def test_what_cannot_be_traced_is_not_applicable(kit) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else x

    held = Held(Branching(), (torch.ones(2, 2), torch.zeros(2, dtype=torch.long)))
    with pytest.raises(NotApplicable, match=r"torch\.fx"):
        channels_of(held)


def test_pins_are_named(kit) -> None:
    held = Held(nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)), kit.points(2, shape=(2,), classes=2))
    assert "GELU" in str(all_pinned(held, "scale"))
    assert channels_of(held).free == 0
