"""Networks within `FastLayers` compute what they compute without it; on a CPU through Triton's interpreter."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.gpu.fast_layers import FastLayers, norm_relu
from warp_unlearning.models.networks import ResNet18

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resnet() -> nn.Module:
    model = ResNet18(stem="imagenet", width=4).to(DEVICE, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator).to(DEVICE)
        parameter.data.copy_(0.3 * drawn if parameter.dim() > 1 else 1 + 0.1 * drawn)
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10, 3, 32, 32, generator=generator).to(DEVICE).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(0, 10, (10,), generator=generator).to(DEVICE)


def gradients(model: nn.Module, layers: FastLayers | None, dtype: torch.dtype) -> list[Tensor]:
    x, y = batch()
    x = x.double() if dtype == torch.float64 else x
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16), layers or nullcontext():
        loss = F.cross_entropy(model(x).to(torch.promote_types(dtype, torch.float32)), y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    squares = [((a.double() - b).square().sum(), b.square().sum()) for a, b in zip(found, exact, strict=True)]
    return float((sum(s for s, _ in squares) / sum(t for _, t in squares)) ** 0.5)


def test_half_precision_is_as_exact_as_without() -> None:
    start = resnet()
    exact_model, plain_model, fast_model = deepcopy(start).double(), deepcopy(start), deepcopy(start)
    exact = gradients(exact_model, None, torch.float64)
    plain = error(gradients(plain_model, None, torch.bfloat16), exact)
    fast = error(gradients(fast_model, FastLayers(), torch.bfloat16), exact)
    assert fast < 1.3 * plain
    for (name, a), b in zip(fast_model.named_buffers(), exact_model.buffers(), strict=True):
        torch.testing.assert_close(
            a.double(), b.double(), rtol=0.05, atol=0.05, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_in_double_precision_all_agrees() -> None:
    models = [resnet().double(), resnet().double()]
    found = [gradients(m, s, torch.float64) for m, s in zip(models, (None, FastLayers()), strict=True)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)
    assert [int(b) for n, b in models[1].named_buffers() if n.endswith("num_batches_tracked")] == [1] * 20


def half_images(seed: int) -> Tensor:
    x = torch.randn(8, 6, 5, 5, generator=torch.Generator().manual_seed(seed))
    return x.to(DEVICE, torch.bfloat16).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("adds", [False, True])
def test_norm_relu_is_one_layer_within_the_block_alone(adds: bool) -> None:
    norm, x = nn.BatchNorm2d(6).to(DEVICE), half_images(0).requires_grad_()
    other = deepcopy(norm)
    residual = half_images(1) if adds else None
    outside = norm_relu(norm, x, residual)
    with FastLayers():
        within = norm_relu(other, x, residual)
    names = [str(type(output.grad_fn).__name__) for output in (outside, within)]
    assert names == ["ReluBackward0", "_BatchNormBackward"]
    torch.testing.assert_close(within, outside, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(other.running_var, norm.running_var, rtol=2e-3, atol=2e-3)
    assert int(other.num_batches_tracked or 0) == int(norm.num_batches_tracked or 0) == 1


def test_a_watched_batch_norm_is_called() -> None:
    norm, seen = nn.BatchNorm2d(6).to(DEVICE), []
    norm.register_forward_hook(lambda *_: seen.append(1))  # type: ignore[arg-type]
    with FastLayers():
        norm_relu(norm, half_images(0))
    assert seen


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 4, 3),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.BatchNorm2d(6).eval(),
        nn.BatchNorm2d(6, affine=False),
        nn.BatchNorm2d(6, track_running_stats=False),
    ],
    ids=str,
)
def test_other_layers_are_left_as_they_are(layer: nn.Module) -> None:
    x = half_images(0).float().cpu()
    expected = deepcopy(layer)(x)
    with FastLayers():
        found = layer(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_network_used_twice_counts_two_batches() -> None:
    norms = nn.BatchNorm2d(3).to(DEVICE), nn.BatchNorm2d(3).to(DEVICE)
    with FastLayers():
        for norm in (*norms, norms[0]):
            norm(torch.randn(2, 3, 4, 4, device=DEVICE))
    assert [int(norm.num_batches_tracked) for norm in norms] == [2, 1]  # type: ignore[arg-type]


def test_other_additions_happen_at_once() -> None:
    steps, values = torch.zeros(2, dtype=torch.int64), torch.zeros(())
    with FastLayers():
        steps.add_(1)
        values.add_(1)
        assert steps.tolist() == [1, 1]
        assert float(values) == 1


def small_network() -> nn.Sequential:
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.Flatten(), nn.Linear(6 * 16, 4)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return model  # type: ignore[no-any-return]


def in_half(layers: FastLayers | None = None) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(torch.autocast(DEVICE.type, dtype=torch.bfloat16))
    stack.enter_context(layers or nullcontext())
    return stack


def losses(model: nn.Module) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [model(torch.randn(5, 3, 4, 4, generator=draw).to(DEVICE)).float().square().mean() for _ in range(2)]


def slopes(model: nn.Module, layers: FastLayers | None = None) -> list[Tensor]:
    with in_half(layers):
        learned = [p for p in model.parameters() if p.requires_grad]
        return [slope for loss in losses(model) for slope in torch.autograd.grad(loss, learned)]


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_cast_together_have_the_gradients_of_those_cast_one_by_one(frozen: bool) -> None:
    model, layers = small_network(), FastLayers()
    model[0].weight.requires_grad_(not frozen)  # type: ignore[operator]
    for _ in range(3):
        for a, b in zip(slopes(model), slopes(model, layers), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        with torch.no_grad():  # A step, after which copies are made anew.
            for p in model.parameters():
                p.mul_(1.1)


def test_weights_that_change_within_the_block_are_read_as_they_are() -> None:
    model, layers = small_network(), FastLayers()
    slopes(model, layers)
    with in_half(layers):
        before = losses(model)
        with torch.no_grad():
            model[4].weight.zero_()  # type: ignore[operator]
        after = losses(model)
    with in_half():
        assert torch.equal(torch.stack(after), torch.stack(losses(model)))
    assert not torch.equal(before[0], after[0])


def test_unused_weights_have_no_gradient_and_full_precision_has_no_copies() -> None:
    model, layers = small_network(), FastLayers()
    slopes(model, layers)
    with in_half(layers):
        output = model[4](torch.ones(2, 96, device=DEVICE)).float().sum()
        found = torch.autograd.grad(output, [model[2].weight, model[4].weight], allow_unused=True)  # type: ignore[list-item]
        with torch.autocast(DEVICE.type, enabled=False):
            assert losses(model)[0].dtype == model[4](torch.ones(2, 96, device=DEVICE)).dtype == torch.float32
    assert found[0] is None
    assert found[1] is not None


@given(
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(4, 11), st.integers(4, 11)),
    kernel=st.tuples(st.integers(4, 7), st.integers(4, 7)),
    padding=st.integers(2, 3),
)
def test_a_stem_on_folded_images_is_the_same_convolution(
    channels: int, size: tuple[int, int], kernel: tuple[int, int], padding: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    stem = nn.Conv2d(channels, 3, kernel, stride=2, padding=padding).double().to(DEVICE)
    x = torch.randn(2, channels, *size, dtype=torch.float64, generator=generator).to(DEVICE)
    expected = stem(x)
    with FastLayers():
        found = stem(x)
    torch.testing.assert_close(found, expected)
    dy = torch.randn(expected.shape, dtype=torch.float64, generator=generator).to(DEVICE)
    learned = list(stem.parameters())
    torch.testing.assert_close(torch.autograd.grad(found, learned, dy), torch.autograd.grad(expected, learned, dy))
