"""Convolutions whose input gradient is torch's transposed convolution, beside what autograd says of the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.gradients.ghost.geometry import Geometry, plane
from warp_unlearning.gradients.ghost.joint_kernels import join_kernels, kernels_with_history
from warp_unlearning.gradients.ghost.rule import Passing
from warp_unlearning.gradients.ghost.transposed import convolved_by_transposing, suits_transposing

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def derivatives(output: Tensor, a: Tensor, kernel: Tensor, passing: Passing) -> list[Tensor]:
    """The output, its slopes, the gradient at a, and what the length of that has as gradients."""
    passing.outputs_only = True
    (b,) = torch.autograd.grad(output.sin().sum(), a, create_graph=True)
    passing.outputs_only = False
    first = torch.autograd.grad(output.square().sum(), (a, kernel), retain_graph=True)
    return [output.detach(), *first, b.detach(), *torch.autograd.grad(b.square().sum(), (a, kernel))]


@settings(max_examples=100)
@given(
    size=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    image=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_first_and_second_derivatives(image: tuple[int, int], **options: Any) -> None:
    reach = (options["dilation"][k] * (options["size"][k] - 1) - 2 * options["padding"][k] for k in (0, 1))
    assume(all(length > r for length, r in zip(image, reach, strict=True)))
    size = options.pop("size")
    layer = nn.Conv2d(2, 3, size, bias=False, **options).double()
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 2, *image, generator=generator, dtype=torch.float64, requires_grad=True)
    images, geometry = plane(layer, a)
    passing = Passing()
    found = derivatives(convolved_by_transposing(images, layer.weight, geometry, passing), a, layer.weight, passing)
    expected = derivatives(layer(a), a, layer.weight, passing)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_kernels_with_a_history_hand_over_gradients() -> None:
    layers: list[Any] = [nn.Conv2d(8, 8, 3).double() for _ in range(4)]
    layers[1] = layers[1].to(memory_format=torch.channels_last)
    layers[2].weight.requires_grad_(False)
    join_kernels(layers)
    passing = Passing()
    pairs = [kernels_with_history(layer, True, passing) for layer in layers]
    found = [pair for pair in pairs if pair is not None]
    assert [[kernel.requires_grad for kernel in pair] for pair in found] == [
        [True] * 2,
        [True] * 2,
        [False] * 2,
        [True] * 2,
    ]
    for pair, layer in zip(found, layers, strict=True):
        for kernel in pair:
            assert kernel.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(kernel, layer.weight, rtol=0, atol=0)
    trained = [layers[0].weight, layers[1].weight, layers[3].weight]
    assert {child.variable for node in passing.handing for child, _ in node.next_functions if child} == set(trained)
    # Both of one, one of another, and none of the last.
    total = found[0][0].sin().sum() + found[0][1].square().sum() + found[1][1].sin().sum() + found[2][0].sin().sum()
    slopes = torch.autograd.grad(total, trained, allow_unused=True)
    torch.testing.assert_close(slopes[0], trained[0].detach().cos() + 2 * trained[0].detach())
    torch.testing.assert_close(slopes[1], trained[1].detach().cos())
    assert slopes[2] is None


def test_inputs_alone_need_no_history() -> None:
    layer = nn.Conv2d(8, 8, 3)
    join_kernels([layer])
    passing = Passing(inputs_only=True)
    pair = kernels_with_history(layer, True, passing)
    assert pair is not None
    assert not any(kernel.requires_grad for kernel in pair)
    assert not passing.handing


def test_kernels_written_over_are_noticed(drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    layers = (nn.Conv2d(2, 4, 3, bias=False), nn.Tanh(), nn.Conv2d(4, 3, 3, bias=False), nn.Flatten())
    model = drawn(lambda: nn.Sequential(*layers))
    with as_on_a_gpu():
        energy = gradient_energy(model, *examples(2, 2, 5, 5)).sum()
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(energy, list(model.parameters()))


class Idle(nn.Module):
    """Convolutions of which one is not called, one is called twice, and one has another use as well."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(4))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.convs[1](self.convs[0](x).sin()).tanh()
        h = self.convs[2](self.convs[1](h).sin())
        return self.last((h + nn.functional.conv2d(h.sin(), self.convs[2].weight, padding=1)).sin().mean((2, 3)))


def test_kernels_that_are_idle_or_used_in_other_ways(
    assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any
) -> None:
    model, (x, y) = drawn(Idle), examples(3, 4, 5, 5)
    with as_on_a_gpu():
        assert_exact(model, x, y)
        total = gradient_energy(model, x, y).sum()
    assert torch.autograd.grad(total, model.convs[3].weight, allow_unused=True) == (None,)


@pytest.mark.parametrize(("device", "groups", "suits"), [("cpu", 1, False), ("cuda", 1, True), ("cuda", 2, False)])
def test_where_they_are_used(device: str, groups: int, suits: bool) -> None:
    geometry = Geometry(4, 4 // groups, (3, 3), (1, 1), (1, 1), (1, 1), groups)
    assert suits_transposing(torch.device(device), geometry) is suits
