from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.gradients.ghost import kernel_norm
from warp_unlearning.gradients.ghost.convolution import ConvolutionRule
from warp_unlearning.gradients.ghost.geometry import plane
from warp_unlearning.gradients.ghost.gram import Gram
from warp_unlearning.gradients.ghost.grouped import Grouped
from warp_unlearning.gradients.ghost.grouped_last import GroupedLast
from warp_unlearning.gradients.ghost.kernel_contraction import KernelContraction
from warp_unlearning.gradients.ghost.patches import Patches
from warp_unlearning.gradients.ghost.rule import Part
from warp_unlearning.gradients.ghost.windowed_gram import WindowedGram


@st.composite
def layers(draw: st.DrawFn) -> nn.Module:
    groups = draw(st.integers(1, 2))
    return nn.Conv2d(
        2 * groups,
        3 * groups,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4))),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        padding=draw(st.tuples(st.integers(0, 4), st.integers(0, 3))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups=groups,
        bias=False,
    ).double()


def norms_and_pullbacks(norms: Tensor, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return norms.detach(), *torch.autograd.grad(norms @ torch.linspace(0.5, 1.5, len(a)).double(), (a, g))


@pytest.mark.parametrize("way", [Gram, Grouped, GroupedLast, WindowedGram, Patches])
@pytest.mark.parametrize("elements", [1, 10**9])
@settings(max_examples=40)
@given(layer=layers(), seed=st.integers(0, 2**16), last=st.booleans())
def test_every_contraction_in_any_chunks(
    layer: Any, seed: int, last: bool, way: type[KernelContraction], elements: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    form = torch.channels_last if last else torch.contiguous_format
    a = torch.randn(3, layer.in_channels, 7, 9, generator=generator, dtype=torch.float64)
    g = torch.randn(layer(a).shape, generator=generator, dtype=torch.float64)
    a, g = (t.contiguous(memory_format=form).requires_grad_() for t in (a, g))
    rule = ConvolutionRule()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_norm, "contraction_for", lambda *_: way())
        patch.setattr(way, "chunk", elements)
        found = norms_and_pullbacks(rule.squared_norm(layer, "weight", a, g), a, g)
    squares = rule.gradient(layer, "weight", a, g).flatten(1).square().sum(1)
    for one, other in zip(found, norms_and_pullbacks(squares, a, g), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@given(layer=layers(), seed=st.integers(0, 2**16))
@settings(max_examples=20)
def test_gradients_sum_to_autograds(layer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, layer.in_channels, 7, 9, generator=generator, dtype=torch.float64)
    output = layer(a)
    g = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(output, layer.weight, g)
    torch.testing.assert_close(ConvolutionRule().gradient(layer, "weight", a, g).sum(0), expected)


@pytest.mark.parametrize(
    ("device", "size", "channels", "way"),
    [
        ("cpu", 4, 512, Gram),
        ("cpu", 8, 256, Gram),
        ("cpu", 32, 64, Grouped),
        ("cuda", 4, 512, WindowedGram),
        ("cuda", 32, 64, GroupedLast),
        ("cuda", 32, 3, Patches),
    ],
)
def test_the_cheaper_contraction_is_chosen(device: str, size: int, channels: int, way: type[KernelContraction]) -> None:
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    _, geometry = plane(layer, torch.empty(2, channels, size, size))
    sizes = (size, size), (size, size)
    assert isinstance(kernel_norm.contraction_for(torch.device(device), torch.float32, *sizes, geometry), way)


@pytest.mark.parametrize(
    ("count", "numbers", "chunk", "some"), [(10, 1, 10, 10), (10, 1, 9, 5), (10, 5, 4, 1), (7, 1, 3, 3), (1, 9, 1, 1)]
)
def test_chunks_share_the_batch_equally(count: int, numbers: int, chunk: int, some: int) -> None:
    assert kernel_norm.images_at_once(count, numbers, chunk) == some


@pytest.mark.parametrize("names", [["weight"], ["bias"], ["weight", "bias"]])
def test_norms_of_several_layers(as_on_a_gpu: Any, names: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        Part(
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            *(torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes),
        )
        for shapes in [((4, 8, 3, 3), (4, 12, 2, 2))] * 3
    ]
    rule = ConvolutionRule()
    with as_on_a_gpu():
        assert len({rule.kinship(part.layer, part.a, part.g) for part in parts}) == 1
        assert rule.kinship(parts[0].layer, parts[0].a, parts[0].g) is not None
        found = rule.squared_norms(names, parts)
    squares = [rule.gradient(p.layer, n, p.a, p.g).flatten(1).square().sum(1) for p in parts for n in names]
    inputs = [t for part in parts for t in (part.a, part.g)]
    weights = torch.linspace(0.5, 1.5, 4, dtype=torch.float64)
    expected = torch.stack(squares).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)
    pairs = [
        torch.autograd.grad(n @ weights, inputs, materialize_grads=True, allow_unused=True) for n in (found, expected)
    ]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("way", [Gram, Grouped, GroupedLast, WindowedGram, Patches])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("size", "stride", "groups"), [(3, 1, 1), (3, 1, 2), (1, 2, 1), (1, 2, 2)])
def test_several_layers_with_groups_and_steps(
    monkeypatch: pytest.MonkeyPatch, way: type[KernelContraction], frozen: bool, size: int, stride: int, groups: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(4, 6, size, stride=stride, groups=groups, bias=False).double()
    parts = []
    for last in (True, False, True):
        form = torch.channels_last if last else torch.contiguous_format
        a = torch.randn(4, 4, 5, 4, generator=generator, dtype=torch.float64).contiguous(memory_format=form)
        g = torch.randn(layer(a).shape, generator=generator, dtype=torch.float64).contiguous(memory_format=form)
        parts.append(Part(layer, a.requires_grad_(not frozen), g.requires_grad_()))
    rule = ConvolutionRule()
    squares = [rule.gradient(layer, "weight", part.a, part.g).flatten(1).square().sum(1) for part in parts]
    monkeypatch.setattr(kernel_norm, "contraction_for", lambda *_: way())
    found, expected = rule.squared_norms(["weight"], parts), torch.stack(squares).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)
    inputs = [t for part in parts for t in (part.a, part.g) if t.requires_grad]
    weights = torch.linspace(0.5, 1.5, 4, dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad(n @ weights, inputs) for n in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", [{"padding_mode": "circular", "padding": 1}, {"padding": "same"}])
def test_layers_that_pad_their_inputs_are_taken_alone(as_on_a_gpu: Any, options: Any) -> None:
    layer, a = nn.Conv2d(8, 12, 3, **options), torch.ones(2, 8, 2, 2)
    with as_on_a_gpu() as chosen:
        assert ConvolutionRule().kinship(layer, a, layer(a)) is None
        ConvolutionRule().squared_norm(layer, "weight", a, layer(a))
    assert chosen[0].together


def test_layers_are_taken_alone_on_a_cpu() -> None:
    layer, a = nn.Conv2d(2, 3, 3), torch.ones(2, 2, 4, 4)
    assert ConvolutionRule().kinship(layer, a, layer(a)) is None


def test_the_node_that_points_to_a_plain_kernel_is_known_unless_it_points_to_its_input_too() -> None:
    rule, a = ConvolutionRule(), torch.ones(2, 3, 4, 4)
    plain, shifted = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 3, 1)
    computed = a.clone().requires_grad_() * 2
    assert [rule.hands_over(plain, images) for images in (a, computed, nn.Parameter(a))] == [True, True, False]
    assert not rule.hands_over(shifted, a)
    assert not rule.hands_over(plain, a[0])


def test_layers_that_step_over_inputs_are_kin_where_a_single_position_is_left() -> None:
    a, g = torch.ones(2, 3, 2, 2), torch.ones(2, 4, 1, 1)
    assert ConvolutionRule().kinship(nn.Conv2d(3, 4, 1, stride=2), a, g) is not None
