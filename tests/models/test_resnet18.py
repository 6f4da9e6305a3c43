from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import ResNet18

Entry = tuple[str, tuple[int, ...]]


def _norm(prefix: str, channels: int) -> list[Entry]:
    names = ("weight", "bias", "running_mean", "running_var")
    return [*((f"{prefix}.{name}", (channels,)) for name in names), (f"{prefix}.num_batches_tracked", ())]


def _published_layout() -> list[Entry]:
    """The table of ResNet-18 in the paper, in the names of the weights in circulation."""
    table = [(64, 64), (64, 128), (128, 256), (256, 512)]
    entries: list[Entry] = [("conv1.weight", (64, 3, 7, 7)), *_norm("bn1", 64)]
    for stage, (before, after) in enumerate(table, start=1):
        for block, entering in enumerate((before, after)):
            prefix = f"layer{stage}.{block}"
            entries += [(f"{prefix}.conv1.weight", (after, entering, 3, 3)), *_norm(f"{prefix}.bn1", after)]
            entries += [(f"{prefix}.conv2.weight", (after, after, 3, 3)), *_norm(f"{prefix}.bn2", after)]
            if entering != after:
                entries.append((f"{prefix}.downsample.0.weight", (after, entering, 1, 1)))
                entries += _norm(f"{prefix}.downsample.1", after)
    return [*entries, ("fc.weight", (1000, 512)), ("fc.bias", (1000,))]


@pytest.fixture(scope="module")
def published() -> ResNet18:
    return ResNet18(classes=1000, stem="imagenet")


def test_layout_is_that_of_published_weights(published: ResNet18) -> None:
    layout = [(name, tuple(tensor.shape)) for name, tensor in published.state_dict().items()]
    assert layout == _published_layout()
    assert len(layout) == 122


def test_parameter_counts_are_those_published(published: ResNet18) -> None:
    assert len(list(published.parameters())) == 62
    assert sum(parameter.numel() for parameter in published.parameters()) == 11_689_512


def test_batch_norms_start_at_one_and_zero(published: ResNet18) -> None:
    for name, parameter in published.named_parameters():
        if ".bn" in name or name.startswith("bn") or "downsample.1" in name:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight"))))


def test_convolutions_start_at_the_deviation_of_fan_out(published: ResNet18) -> None:
    for name, shape in _published_layout():
        if len(shape) == 4:
            expected = (2 / (shape[0] * shape[2] * shape[3])) ** 0.5
            assert published.get_parameter(name).std().item() == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize(("stem", "sizes"), [("cifar", [32, 16, 8, 4]), ("imagenet", [8, 4, 2, 1])])
def test_feature_maps_have_the_sizes_of_the_stem(stem: str, sizes: list[int]) -> None:
    model = ResNet18(stem=stem, width=4)  # type: ignore[arg-type]
    seen: list[int] = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda _, __, output: seen.append(output.shape[-1]))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert seen == sizes


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_forward_is_stem_stages_mean_and_classifier(stem: str) -> None:
    model = ResNet18(stem=stem, width=4, classes=3).eval().double()  # type: ignore[arg-type]
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    stride, padding = (2, 3) if stem == "imagenet" else (1, 1)
    # In evaluation mode a fresh batch norm divides by sqrt(1 + eps).
    h = (F.conv2d(x, model.conv1.weight, stride=stride, padding=padding) / (1 + 1e-5) ** 0.5).clamp(min=0)
    if stem == "imagenet":
        h = F.max_pool2d(h, kernel_size=3, stride=2, padding=1)
    h = model.layer4(model.layer3(model.layer2(model.layer1(h))))
    pooled = h.flatten(2).sum(-1) / (h.shape[2] * h.shape[3])
    torch.testing.assert_close(model(x), pooled @ model.fc.weight.T + model.fc.bias)


def test_the_cifar_stem_differs_only_in_its_first_kernel(published: ResNet18) -> None:
    cifar = ResNet18(classes=1000).state_dict()
    assert cifar["conv1.weight"].shape == (64, 3, 3, 3)
    others = {name: tensor.shape for name, tensor in published.state_dict().items() if name != "conv1.weight"}
    assert others == {name: tensor.shape for name, tensor in cifar.items() if name != "conv1.weight"}


def test_width_and_channels_scale_the_layers() -> None:
    model = ResNet18(width=2, in_channels=1)
    assert model.conv1.weight.shape == (2, 1, 3, 3)
    assert model.fc.weight.shape == (10, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "cifr"}, "did you mean 'cifar'"),
        ({"width": 0}, "width is 0"),
        ({"classes": -1}, "classes is -1"),
        ({"in_channels": 1.5}, r"in_channels is 1\.5"),
        ({"classes": True}, "classes is True"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ResNet18(**options)  # type: ignore[arg-type]
