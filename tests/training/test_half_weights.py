"""Weights that are cast together give what weights give that are cast one by one."""

from __future__ import annotations

import gc
from collections import Counter
from copy import deepcopy
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from warp_unlearning.training.half_weights import HalfWeights
from warp_unlearning.training.swift_layers import SwiftLayers


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.Flatten(), nn.Linear(6 * 16, 4)]
        return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def images(seed: int = 0) -> Tensor:
    return torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def slopes(model: nn.Module, layers: SwiftLayers, x: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16), layers:
        learned = [p for p in model.parameters() if p.requires_grad]
        return list(torch.autograd.grad(F.cross_entropy(model(x).float(), torch.arange(5) % 4), learned))


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))


def test_gradients_are_those_of_weights_that_are_cast_one_by_one() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    first = slopes(model, layers, images())
    for again in (slopes(model, layers, images()), slopes(model, layers, images())):
        for a, b, p in zip(first, again, model.parameters(), strict=True):
            assert torch.equal(a, b)
            assert (b.dtype, b.stride()) == (p.dtype, p.stride())


def test_weights_are_cast_together() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    counts = []
    for _ in range(2):
        with Counted() as counted:
            slopes(model, layers, images())
        counts.append(counted.calls)
    # Once forward and once backward, for three weights.
    assert counts[0]["aten::_foreach_copy_"] == 0
    assert counts[1]["aten::_foreach_copy_"] == 2
    assert counts[0]["aten::_to_copy"] - counts[1]["aten::_to_copy"] == 2 * 3


def test_weights_that_change_between_blocks_are_cast_anew() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    slopes(model, layers, images())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    found = slopes(model, layers, images())
    for a, b in zip(found, slopes(deepcopy(model), SwiftLayers(triton=False), images()), strict=True):
        assert torch.equal(a, b)


def test_weights_that_change_within_the_block_are_read_as_they_are() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    slopes(model, layers, images())
    with torch.autocast("cpu", dtype=torch.bfloat16), layers:
        before = model(images())
        with torch.no_grad():
            model[0].weight.zero_()  # type: ignore[operator]
        after = model(images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(after, model(images()))
    assert not torch.equal(before, after)


def test_frozen_weights_and_unused_ones() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    model[0].weight.requires_grad_(False)  # type: ignore[operator]
    first = slopes(model, layers, images())
    for a, b in zip(first, slopes(model, layers, images()), strict=True):
        assert torch.equal(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16), layers:
        kept = model[2].weight, model[4].weight
        found = torch.autograd.grad(model[4](torch.ones(2, 96)).float().sum(), kept, allow_unused=True)
    assert found[0] is None
    assert found[1] is not None


def test_two_losses_in_one_block() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    found = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16), layers:
            outputs = [model(images(seed)).float().square().mean() for seed in (1, 2)]
            found.append([torch.autograd.grad(loss, list(model.parameters())) for loss in outputs])
    for a, b in zip(*found, strict=True):
        assert all(torch.equal(c, d) for c, d in zip(a, b, strict=True))


def test_in_full_precision_nothing_is_cast() -> None:
    model, halves = network(), HalfWeights()
    weight = model[0].weight
    assert isinstance(weight, Tensor)
    assert halves.of(weight) is None
    halves.cast()
    assert halves.of(weight) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert halves.of(weight) is None
        halves.cast()
        half = halves.of(weight)
        assert half is not None
        assert half.dtype == torch.bfloat16
    halves.let_go()
    assert halves.of(weight) is None


def test_of_kernels_larger_than_the_images_the_taps_that_see_them_are_cast() -> None:
    layer = nn.Conv2d(3, 4, 3, padding=1, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layers, x = SwiftLayers(triton=False), images()[:, :, :1, :1]
    found = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16), layers:
            y = layer(x)
            (slope,) = torch.autograd.grad(y.float().square().sum(), layer.weight)
        found.append((y, slope))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert [tuple(half.shape[2:]) for half in _cast_of(layers, layer)] == [(1, 1)]
    assert slope.stride() == layer.weight.stride()
    assert int((slope != 0).sum()) == 4 * 3


def _cast_of(layers: SwiftLayers, layer: nn.Conv2d) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16), layers:
        return [half for (which, _), (half, _) in layers._halves._halves.items() if which == id(layer.weight)]


def test_layers_that_are_done_let_go_of_weights() -> None:
    model, layers = network(), SwiftLayers(triton=False)
    slopes(model, layers, images())
    gone = ref(model[0].weight)
    gc.disable()
    try:
        del model, layers
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(4, 6, 3, padding="same"), nn.Conv2d(4, 6, 3, dilation=2)], ids=str
)
def test_convolutions_of_other_kinds_read_the_copies_too(layer: nn.Conv2d) -> None:
    x, layers = torch.randn(2, 4, 7, 7, generator=torch.Generator().manual_seed(0)), SwiftLayers(triton=False)
    found = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16), layers, Counted() as counted:
            y = layer(x)
            found.append((y, *torch.autograd.grad(y.float().square().sum(), (layer.weight, layer.bias))))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert counted.calls["aten::_foreach_copy_"] == 1
