from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.undo.base import Held, NotApplicable
from warp_unlearning.attacks.undo.channels import (
    Channels,
    all_pinned,
    channels_of,
    kernel_directions,
    kernel_lengths,
    pair_sums,
    rescaled,
    solve_positive,
    tap_sums,
    with_deviations,
    with_variances,
)

KINDS = [
    ("plain", "affine", False),
    ("grouped", "affine", True),
    ("depthwise", "none", False),
    ("grouped", "bare", True),
]


def logs_of(kit, channels: Channels) -> Tensor:
    return channels.embedded(0.4 * kit.normal(channels.free, seed=3))


@pytest.mark.parametrize(("inner", "norm", "flat"), KINDS)
def test_rescaling_keeps_the_function(kit, inner, norm, flat) -> None:
    model = kit.residual(norm=norm, inner=inner, flat=flat)
    held = kit.held(model)
    channels = channels_of(held)
    assert channels.free >= 12
    values = rescaled(channels, with_deviations(channels, held.weights), logs_of(kit, channels))
    moved = deepcopy(model)
    moved.load_state_dict({**model.state_dict(), **with_variances(channels, values)})
    assert not torch.allclose(moved.stem.weight, model.stem.weight, rtol=0.05)
    torch.testing.assert_close(moved(held.x), model(held.x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("inner", "norm", "flat"), KINDS)
def test_derivatives_are_those_of_autograd(kit, inner, norm, flat) -> None:
    held = kit.held(kit.residual(norm=norm, inner=inner, flat=flat))
    channels = channels_of(held)
    values, at = with_deviations(channels, held.weights), logs_of(kit, channels)

    def total(free: Tensor) -> Tensor:
        return torch.stack([v.sum() for v in rescaled(channels, values, channels.embedded(free)).values()]).sum()

    slope = torch.autograd.functional.jacobian(total, at[:-1])
    curvature = torch.autograd.functional.hessian(total, at[:-1])
    for sums, logs in ((pair_sums(channels, values), at), (pair_sums(channels, rescaled(channels, values, at)), None)):
        before = sums.matrix.clone()
        torch.testing.assert_close(sums.first(logs), slope)
        torch.testing.assert_close(sums.second(logs), curvature)
        assert torch.equal(sums.matrix, before)


def by_loop(channels: Channels, values: dict[str, Tensor]) -> Tensor:
    found = torch.zeros(channels.free + 1, channels.free + 1, dtype=torch.float64)
    for name, value in values.items():
        ends = [end.expand(value.shape[:2]) for end in channels.ends[name]]
        for index in torch.cartesian_prod(*(torch.arange(n) for n in (*value.shape, 1))).tolist():
            place = tuple(index[: min(2, value.dim())])
            found[ends[0][place], ends[1][place]] += value[tuple(index[:-1])]
    return found


@pytest.mark.parametrize("inner", ["plain", "grouped", "depthwise"])
def test_pair_sums_are_those_of_a_loop_over_weights(kit, inner) -> None:
    held = kit.held(kit.residual(width=2, inner=inner))
    channels = channels_of(held)
    values = with_deviations(channels, held.weights)
    sums = pair_sums(channels, values)
    torch.testing.assert_close(sums.matrix, by_loop(channels, values))
    again = pair_sums(channels, {name: tap_sums(values[name]) for name in reversed(list(values))})
    torch.testing.assert_close(again.matrix, sums.matrix)
    assert not bool(pair_sums(channels, {"other": torch.ones(3)}).matrix.any())


def test_an_untraceable_network_is_not_applicable() -> None:
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
    assert "GELU" in str(all_pinned(held))
    assert channels_of(held).free == 0


def test_positive_systems_are_solved_and_indefinite_ones_too(kit) -> None:
    root, right = kit.normal(6, 6), kit.normal(6, seed=1)
    positive = root @ root.mT + torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(positive @ solve_positive(positive, right), right)
    indefinite = positive - 5 * torch.eye(6, dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(indefinite)[0]) < 0
    torch.testing.assert_close(indefinite @ solve_positive(indefinite, right), right)
    for singular in (torch.zeros(3, 3), torch.eye(3) * torch.nan):
        with pytest.raises(NotApplicable, match="undetermined"):
            solve_positive(singular, torch.ones(3))


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 5), (3, 2, 5, 4)])
def test_kernels_are_between_one_input_and_one_output_channel(kit, shape) -> None:
    value = kit.normal(*shape)
    found, lengths = kernel_directions(value, value.dim()), kernel_lengths(value, value.dim())
    assert lengths.shape == shape[:2]
    for place in torch.cartesian_prod(*(torch.arange(n) for n in shape[:2])).reshape(-1, len(shape[:2])).tolist():
        kernel = value[tuple(place)]
        torch.testing.assert_close(lengths[tuple(place)], kernel.square().sum().sqrt())
        torch.testing.assert_close(found[tuple(place)], kernel / kernel.square().sum().sqrt())
    stack = torch.stack([value, 2 * value])
    torch.testing.assert_close(kernel_directions(stack, value.dim()), torch.stack([found, found]))
    torch.testing.assert_close(kernel_lengths(stack, value.dim()), torch.stack([lengths, 2 * lengths]))
    for kind in (torch.float32, torch.float64):
        zeros = torch.zeros(shape, dtype=kind)
        assert torch.equal(kernel_directions(zeros, zeros.dim()), zeros)
