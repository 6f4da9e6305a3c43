"""Networks within `SwiftLayers` compute what they compute without it."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.kernels import norm_relu
from warp_unlearning.kernels.availability import triton_is_there
from warp_unlearning.kernels.fusing import fusing
from warp_unlearning.models.networks import ResNet18
from warp_unlearning.training import swift_layers
from warp_unlearning.training.swift_layers import SwiftLayers

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


def slopes(model: nn.Module, layers: SwiftLayers | None, dtype: torch.dtype) -> list[Tensor]:
    x, y = batch()
    x = x.double() if dtype == torch.float64 else x
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16), layers or nullcontext():
        loss = F.cross_entropy(model(x).to(torch.promote_types(dtype, torch.float32)), y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def passed(model: nn.Module) -> None:
    """One pass through swift layers in half precision, which is all that a look at its layers needs."""
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16), SwiftLayers(triton=True):
        model(batch()[0])


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    squares = [((a.double() - b).square().sum(), b.square().sum()) for a, b in zip(found, exact, strict=True)]
    return float((sum(s for s, _ in squares) / sum(t for _, t in squares)) ** 0.5)


def test_half_precision_is_as_exact_as_without() -> None:
    start = resnet()
    exact_model = deepcopy(start).double()
    x, y = batch()
    exact = list(torch.autograd.grad(F.cross_entropy(exact_model(x.double()), y), list(exact_model.parameters())))
    plain_model, swift_model = deepcopy(start), deepcopy(start)
    plain = error(slopes(plain_model, None, torch.bfloat16), exact)
    swift = error(slopes(swift_model, SwiftLayers(triton=True), torch.bfloat16), exact)
    assert swift < 1.3 * plain
    for (name, a), b in zip(swift_model.named_buffers(), exact_model.buffers(), strict=True):
        torch.testing.assert_close(
            a.double(), b.double(), rtol=0.05, atol=0.05, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_in_double_precision_all_agrees() -> None:
    start = resnet().double()
    models = [deepcopy(start), deepcopy(start)]
    found = [slopes(m, s, torch.float64) for m, s in zip(models, (None, SwiftLayers(triton=True)), strict=True)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)
    assert [int(b) for n, b in models[1].named_buffers() if n.endswith("num_batches_tracked")] == [1] * 20


def test_every_layer_of_a_resnet_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: Counter[str] = Counter()
    places = {"convolve": swift_layers, "_batch_norm": swift_layers, "_max_pool": swift_layers}
    for name, module in (places | {"_fused": norm_relu}).items():
        plain = getattr(module, name)

        def noted(*args: Any, name: str = name, plain: Any = plain, **kwargs: Any) -> Any:
            found = plain(*args, **kwargs)
            replaced[name] += found is not None
            return found

        monkeypatch.setattr(module, name, noted)
    passed(resnet())
    # Batch norms of shortcuts have no ReLU after them.
    assert replaced == {"convolve": 20, "_batch_norm": 3, "_fused": 17, "_max_pool": 1}


def test_a_watched_batch_norm_is_called() -> None:
    model, seen = resnet(), []
    model.bn1.register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr, arg-type]
    passed(model)
    assert seen


def test_layers_are_fused_only_within_the_block() -> None:
    with SwiftLayers(triton=True):
        assert fusing.get()
        with SwiftLayers(triton=False):
            assert not fusing.get()
        assert fusing.get()
    assert not fusing.get()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.MaxPool2d((2, 3)),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.BatchNorm2d(4).eval(),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
    ],
    ids=str,
)
def test_other_layers_are_left_as_they_are(layer: nn.Module) -> None:
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    expected = deepcopy(layer)(x)
    with SwiftLayers(triton=True):
        found = layer(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_network_used_twice_counts_two_batches() -> None:
    norms = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    with SwiftLayers(triton=False):
        for norm in (*norms, norms[0]):
            norm(torch.randn(2, 3, 4, 4))
    assert [int(norm.num_batches_tracked) for norm in norms] == [2, 1]  # type: ignore[arg-type]


def test_other_additions_happen_at_once() -> None:
    steps, values = torch.zeros(2, dtype=torch.int64), torch.zeros(())
    with SwiftLayers(triton=False):
        steps.add_(1)
        values.add_(1)
        assert steps.tolist() == [1, 1]
        assert float(values) == 1


def test_triton_is_found() -> None:
    assert triton_is_there()


def test_maps_of_one_pixel_pass_batch_norm_in_eval_mode_as_vectors(norms: Any) -> None:
    layer = nn.BatchNorm2d(4, eps=0.1)
    generator = torch.Generator().manual_seed(0)
    layer(torch.randn(8, 4, 3, 3, generator=generator))
    layer.eval()
    x = torch.randn(5, 4, 1, 1, generator=generator)
    with SwiftLayers(triton=True), norms:
        found = layer(x)
    torch.testing.assert_close(found, layer(x))
    assert norms.dimensions == [2]


def test_forms_that_are_not_trusted_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("a form that is not trusted was used")

    monkeypatch.setattr(swift_layers, "trusted", lambda *_, **__: False)
    monkeypatch.setattr("warp_unlearning.kernels.convolution._folded", refuse)
    monkeypatch.setattr("warp_unlearning.kernels.convolution._Taps", refuse)
    monkeypatch.setattr("warp_unlearning.training.half_weights.cut", refuse)
    start, layers = resnet(), SwiftLayers(triton=False)
    found = [slopes(start, layers, torch.bfloat16) for _ in range(2)]
    plain = slopes(deepcopy(start), None, torch.bfloat16)
    for each in found:
        assert error(each, [slope.double() for slope in plain]) < 1e-3
