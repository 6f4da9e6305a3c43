from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP, BasicBlock, ResNet18, SmallResNet, build_model, suggest_options

Entry = tuple[str, tuple[int, ...]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(), dtype=torch.float64)


def normalise(x: Tensor) -> Tensor:
    """Batch norm at its initial scale and shift, from its definition."""
    mean = x.mean(dim=(0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)


@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (6, 2), (6, 1)])
def test_a_block_is_two_convolutions_beside_a_shortcut(channels: int, stride: int) -> None:
    block = BasicBlock(4, channels, stride=stride).double()
    x = random(3, 4, 7, 7)
    inner = normalise(F.conv2d(x, block.conv1.weight, stride=stride, padding=1)).clamp(min=0)
    residual = normalise(F.conv2d(inner, block.conv2.weight, padding=1))
    assert (block.downsample is None) == (channels == 4)
    if block.downsample is not None:
        x, before = normalise(F.conv2d(x, block.downsample[0].weight, stride=stride)), x
    else:
        before = x
    torch.testing.assert_close(block(before), (residual + x).clamp(min=0))


def test_hooks_keep_what_each_layer_returned() -> None:
    block = BasicBlock(4, 4)
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in block.named_children():

        def keep(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
            kept[name] = (output, output.clone())

        module.register_forward_hook(keep)
    x = random(2, 4, 5, 5).float()
    before = x.clone()
    block(x)
    assert torch.equal(x, before)
    assert set(kept) == {"conv1", "bn1", "conv2", "bn2"}
    assert all(torch.equal(*both) for both in kept.values())


def test_a_perceptron_is_matrix_products_with_relu_between() -> None:
    model = MLP(inputs=12, classes=3, hidden=(5, 4)).double()
    x = random(6, 3, 2, 2)
    (w1, b1), (w2, b2), (w3, b3) = ((m.weight, m.bias) for m in model.layers if isinstance(m, nn.Linear))
    h = (x.reshape(6, 12) @ w1.T + b1).clamp(min=0)
    h = (h @ w2.T + b2).clamp(min=0)
    torch.testing.assert_close(model(x), h @ w3.T + b3)
    linear = MLP(inputs=12, classes=2, hidden=()).double()
    weight, bias = linear.parameters()
    torch.testing.assert_close(linear(x), x.reshape(6, 12) @ weight.T + bias)


@pytest.mark.parametrize("stem", ["small", "cifar", "imagenet"])
def test_a_residual_network_is_stem_stages_mean_and_classifier(stem: str) -> None:
    model: nn.Module = SmallResNet(width=4, in_channels=3) if stem == "small" else ResNet18(stem=stem, width=4)  # type: ignore[arg-type]
    model = model.eval().double()
    stages = [getattr(model, f"layer{i}") for i in range(1, 4 if stem == "small" else 5)]
    seen: list[int] = []
    for stage in stages:
        stage.register_forward_hook(lambda _, __, output: seen.append(output.shape[-1]))
    x = random(2, 3, 32, 32)
    stride, padding = (2, 3) if stem == "imagenet" else (1, 1)
    # In evaluation mode a fresh batch norm divides by sqrt(1 + eps).
    h = (F.conv2d(x, model.conv1.weight, stride=stride, padding=padding) / (1 + 1e-5) ** 0.5).clamp(min=0)
    if stem == "imagenet":
        h = F.max_pool2d(h, kernel_size=3, stride=2, padding=1)
    for stage in stages:
        h = stage(h)
    pooled = h.flatten(2).sum(-1) / (h.shape[2] * h.shape[3])
    torch.testing.assert_close(model(x), pooled @ model.fc.weight.T + model.fc.bias)
    first = 8 if stem == "imagenet" else 32
    assert seen[: len(stages)] == [first // 2**i for i in range(len(stages))]


def norm(prefix: str, channels: int) -> list[Entry]:
    names = ("weight", "bias", "running_mean", "running_var")
    return [*((f"{prefix}.{name}", (channels,)) for name in names), (f"{prefix}.num_batches_tracked", ())]


def published_layout() -> list[Entry]:
    """The table of ResNet-18 in the paper, in the names of the weights in circulation."""
    entries: list[Entry] = [("conv1.weight", (64, 3, 7, 7)), *norm("bn1", 64)]
    for stage, (before, after) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], start=1):
        for block, entering in enumerate((before, after)):
            prefix = f"layer{stage}.{block}"
            entries += [(f"{prefix}.conv1.weight", (after, entering, 3, 3)), *norm(f"{prefix}.bn1", after)]
            entries += [(f"{prefix}.conv2.weight", (after, after, 3, 3)), *norm(f"{prefix}.bn2", after)]
            if entering != after:
                entries.append((f"{prefix}.downsample.0.weight", (after, entering, 1, 1)))
                entries += norm(f"{prefix}.downsample.1", after)
    return [*entries, ("fc.weight", (1000, 512)), ("fc.bias", (1000,))]


def test_resnet18_has_the_layout_and_the_start_of_published_weights() -> None:
    model = ResNet18(classes=1000, stem="imagenet")
    assert [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()] == published_layout()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            # By fan_in it would differ by up to a factor of 2.
            expected = (2 / (parameter.shape[0] * parameter[0, 0].numel())) ** 0.5
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
        elif not name.startswith("fc"):
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight"))))


def test_a_seeded_build_repeats_and_leaves_the_global_state() -> None:
    before = torch.random.get_rng_state()
    options: dict[str, Any] = {"name": "resnet18", "width": 2, "classes": 3, "stem": "imagenet"}
    first, again, other = (build_model(**options, generator=seeded(i)).state_dict() for i in (3, 3, 4))
    assert first["conv1.weight"].shape == (2, 3, 7, 7)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(not torch.equal(first[n], other[n]) for n in first if n.endswith("weight") and first[n].ndim > 1)
    # As in earlier versions.
    drawn = build_model("small_resnet", width=2, generator=seeded(7)).state_dict()
    assert drawn["conv1.weight"].flatten()[:3].tolist() == pytest.approx([-0.23100601, -0.41747802, -0.03801441])
    assert drawn["fc.weight"].flatten()[:3].tolist() == pytest.approx([-0.27108696, -0.2586996, 0.21677241])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "no model is called 'resnet'; did you mean 'resnet18'"),
        ("resnet18", {"clases": 3}, "resnet18 has no option 'clases'; did you mean 'classes'"),
        ("resnet18", {"stem": "cifr"}, "did you mean 'cifar'"),
        ("resnet18", {"stem": ["cifar"]}, "stem is"),
        ("resnet18", {"in_channels": 1.5}, r"in_channels is 1\.5"),
        ("resnet18", {"classes": True}, "classes is True"),
        ("small_resnet", {"width": "16"}, "width is '16'; give a whole number of at least 1"),
        ("mlp", {"classes": 3}, "mlp needs the option 'inputs'"),
        ("mlp", {"classes": 3, "inputs": 4, "hidden": "256"}, "list of layer sizes"),
        ("mlp", {"classes": 3, "inputs": 4, "hidden": 256}, "list of layer sizes"),
        ("mlp", {"classes": 3, "inputs": 4, "hidden": (8, 0)}, r"hidden\[1\] is 0"),
    ],
)
def test_unusable_requests_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(name, **options)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (2, 3, 4)), ("small_resnet", (2, 8, 8)), ("resnet18", (1, 8, 8)), ("small_conv", (3, 10, 10))],
)
def test_suggested_options_build_a_model_that_takes_the_example(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, **suggest_options(name, shape, 7))  # type: ignore[arg-type]
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("small_resnet", (64,), 2, r"takes images .*has shape \(64,\); reshape them or use the model 'mlp'"),
        ("small_conv", (3, 10, 8), 4, "square images"),
        ("mlp", (3, 0), 2, r"shape\[1\] is 0"),
        ("mlp", (3,), 0, "classes is 0"),
        ("mpl", (3,), 2, "did you mean 'mlp'"),
    ],
)
def test_examples_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        suggest_options(name, shape, classes)
