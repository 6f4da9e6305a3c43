"""Kernels on images so small that some taps see padding alone, or that there is a single position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.gradients.ghost import kernel_norm
from warp_unlearning.gradients.ghost.convolution import ConvolutionRule
from warp_unlearning.gradients.ghost.geometry import Geometry, plane, without_idle_taps
from warp_unlearning.gradients.ghost.one_position import OnePosition

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@settings(max_examples=150)
@given(
    size=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    image=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    groups=st.integers(1, 2),
)
def test_norms_and_derivatives(device: str, image: tuple[int, int], groups: int, **options: Any) -> None:
    reach = (options["dilation"][k] * (options["size"][k] - 1) - 2 * options["padding"][k] for k in (0, 1))
    assume(all(length > r for length, r in zip(image, reach, strict=True)))
    layer = nn.Conv2d(
        2 * groups,
        3 * groups,
        options["size"],
        stride=options["stride"],
        padding=options["padding"],
        dilation=options["dilation"],
        groups=groups,
        bias=False,
    ).double()
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 2 * groups, *image, generator=generator, dtype=torch.float64, requires_grad=True)
    output = layer(a)
    g = torch.randn(output.shape, generator=generator, dtype=torch.float64, requires_grad=True)
    kernels = [
        torch.autograd.grad(layer(a[i : i + 1]), layer.weight, g[i : i + 1], create_graph=True)[0] for i in range(3)
    ]
    expected = torch.stack(kernels).flatten(1).square().sum(1)
    choose = kernel_norm.contraction_for
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kernel_norm, "contraction_for", lambda _, dtype, *args: choose(torch.device(device), dtype, *args)
        )
        found = ConvolutionRule().squared_norm(layer, "weight", a, g)
        weights = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
        slopes = torch.autograd.grad(found @ weights, (a, g))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    truth = torch.autograd.grad(expected @ weights, (a, g), allow_unused=True, materialize_grads=True)
    for one, other in zip(slopes, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "inputs", "outputs", "size", "padding"),
    [
        ({"padding": 1}, (1, 1), (1, 1), (1, 1), (0, 0)),
        ({"padding": 1, "stride": 2}, (2, 2), (1, 1), (2, 2), (0, 0)),
        ({"padding": 1}, (2, 2), (2, 2), (3, 3), (1, 1)),
        ({"padding": 1}, (1, 4), (1, 4), (1, 3), (0, 1)),
        ({"padding": 2}, (1, 1), (3, 3), (3, 3), (2, 2)),
    ],
)
def test_taps_that_see_padding_alone_are_left_out(
    options: Any, inputs: Any, outputs: Any, size: tuple[int, int], padding: tuple[int, int]
) -> None:
    _, geometry = plane(nn.Conv2d(2, 2, 3, **options), torch.empty(1, 2, *inputs))
    found = without_idle_taps(geometry, inputs, outputs)
    assert (found.size, found.padding) == (size, padding)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_single_position_is_known(device: str) -> None:
    for options, length, expected in (({"padding": 1, "stride": 2}, 2, True), ({"stride": 2}, 4, False)):
        layer = nn.Conv2d(2, 2, 3, **options)
        _, geometry = plane(layer, torch.empty(1, 2, length, length))
        inputs = (length, length)
        geometry = without_idle_taps(geometry, inputs, (1, 1))
        chosen = kernel_norm.contraction_for(torch.device(device), torch.float32, inputs, (1, 1), geometry)
        assert isinstance(chosen, OnePosition) == expected


@pytest.mark.parametrize(
    ("changes", "suits"),
    [({}, True), ({"padding": (0, 1)}, False), ({"dilation": (2, 1)}, False), ({"size": (1, 2)}, False)],
)
def test_a_patch_that_is_the_image(changes: dict[str, Any], suits: bool) -> None:
    options = {"size": (2, 2), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **changes}
    assert OnePosition().suits((2, 2), (1, 1), Geometry(out=3, width=2, groups=1, **options)) == suits
