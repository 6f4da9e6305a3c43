"""Our networks, and building one by its name.

Every network draws its initial weights from one generator (`build_model`), whatever device it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError, nearest
from ..kernels.norm_relu import norm_relu
from .fresh import reinitialise

Stem = Literal["imagenet", "cifar"]


def require_positive(options: Mapping[str, object]) -> None:
    """Refuse any option that is not an integer of at least 1; a bool is no count of anything."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}; give a whole number of at least 1")


class MLP(nn.Module):
    """Linear layers with ReLU between them on the flattened input: `inputs` numbers to `classes` logits through layers
    of the sizes in `hidden`; an empty list makes it linear.
    """

    def __init__(self, *, inputs: int, classes: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        sizes: object = hidden
        if isinstance(sizes, str) or not isinstance(sizes, Sequence):
            raise InputError(f"hidden is {hidden!r}; give a list of layer sizes, such as [256, 256]")
        require_positive({"inputs": inputs, "classes": classes, **{f"hidden[{i}]": n for i, n in enumerate(hidden)}})
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of inputs (batch, ...) that hold `inputs` numbers each."""
        return cast(Tensor, self.layers(x.flatten(start_dim=1)))


class SmallConv(nn.Module):
    """Three 3x3 convolutions with biases, `width`, 2 and 2 times `width` channels, the last two at a stride of 2, and a
    classifier on all positions of a square image: where something is in an image stays visible in the gradient.
    """

    def __init__(self, *, classes: int = 10, width: int = 16, in_channels: int = 1, size: int = 8) -> None:
        super().__init__()
        require_positive({"classes": classes, "width": width, "in_channels": in_channels, "size": size})
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.fc = nn.Linear(2 * width * ((size + 3) // 4) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, in_channels, size, size)."""
        features = F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))
        return cast(Tensor, self.fc(torch.flatten(features, 1)))


class BasicBlock(nn.Module):
    """relu(BN(conv(relu(BN(conv(x))))) + shortcut(x)) with 3x3 convolutions.

    Where the shapes agree the shortcut is the identity, else `downsample`: a 1x1 convolution and batch norm.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Features (batch, out, h / stride, w / stride), rounded up, of features (batch, in, h, w)."""
        # No operation is in place: hooks keep what a layer returned.
        features = self.conv2(norm_relu(self.bn1, self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return norm_relu(self.bn2, features, shortcut)


class _Residual(nn.Module):
    """Draws every kernel from N(0, 2 / fan_out), which keeps the variance of gradients."""

    def reset_parameters(self) -> None:
        """Draw the convolutions anew; batch norms and the classifier start as their own layers do."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class SmallResNet(_Residual):
    """A 3x3 stem, three basic blocks with `width`, 2 and 4 times `width` channels, and a classifier, for images of 8x8
    to 32x32 on a CPU; `stem_stride` 2 quarters the work on larger images.
    """

    def __init__(self, *, classes: int = 10, width: int = 16, in_channels: int = 1, stem_stride: int = 1) -> None:
        super().__init__()
        require_positive({"classes": classes, "width": width, "in_channels": in_channels, "stem_stride": stem_stride})
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stem_stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = BasicBlock(width, width)
        self.layer2 = BasicBlock(width, 2 * width, stride=2)
        self.layer3 = BasicBlock(2 * width, 4 * width, stride=2)
        self.fc = nn.Linear(4 * width, classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, in_channels, h, w)."""
        features = norm_relu(self.bn1, self.conv1(x))
        features = self.layer3(self.layer2(self.layer1(features)))
        return cast(Tensor, self.fc(features.mean(dim=(2, 3))))


class ResNet18(_Residual):
    """ResNet-18 (He et al., 2016), in the state-dict layout of published weights: four stages of two basic blocks with
    `width`, 2, 4 and 8 times `width` channels, and a classifier.

    The `imagenet` stem halves the image twice (7x7 convolution, max-pool); the `cifar` stem is a 3x3
    convolution that keeps the size, for images of about 32x32.
    """

    def __init__(self, *, classes: int = 10, stem: Stem = "cifar", width: int = 64, in_channels: int = 3) -> None:
        super().__init__()
        require_positive({"classes": classes, "width": width, "in_channels": in_channels})
        if stem not in get_args(Stem):
            raise InputError(f"stem is {stem!r}; {nearest(str(stem), get_args(Stem))}")
        self.stem: Stem = stem
        size, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = nn.Conv2d(in_channels, width, size, stride=stride, padding=size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.fc = nn.Linear(8 * width, classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, in_channels, h, w)."""
        features = norm_relu(self.bn1, self.conv1(x))
        if self.stem == "imagenet":
            features = F.max_pool2d(features, 3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            features = stage(features)
        return cast(Tensor, self.fc(features.mean(dim=(2, 3))))


def _stage(in_channels: int, out_channels: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(in_channels, out_channels, stride=stride), BasicBlock(out_channels, out_channels))


MODELS: Mapping[str, type[nn.Module]] = MappingProxyType(
    {"mlp": MLP, "resnet18": ResNet18, "small_conv": SmallConv, "small_resnet": SmallResNet}
)


def build_model(name: str, *, generator: torch.Generator | None = None, **options: object) -> nn.Module:
    """The model `name` built from `options`, with weights drawn from `generator`, or from torch's own state.

    >>> type(build_model("mlp", inputs=4, classes=2)).__name__
    'MLP'
    """
    known = _options(name)
    for option in options:
        if option not in known:
            raise InputError(f"{name} has no option {option!r}; {nearest(option, known)}")
    for option, about in known.items():
        if about.default is Parameter.empty and option not in options:
            raise InputError(f"{name} needs the option {option!r}; give it a value")
    if generator is None:
        return MODELS[name](**options)
    with torch.random.fork_rng(devices=[]):
        built = MODELS[name](**options)
    reinitialise(built, generator=generator)
    return built


def suggest_options(name: str, shape: tuple[int, ...], classes: int) -> dict[str, int]:
    """The options that make the model `name` fit one example of `shape` and this number of classes.

    >>> suggest_options("resnet18", (3, 32, 32), 10)
    {'in_channels': 3, 'classes': 10}
    """
    known = _options(name)
    require_positive({"classes": classes, **{f"shape[{i}]": size for i, size in enumerate(shape)}})
    if "inputs" in known:
        return {"inputs": prod(shape), "classes": classes}
    if len(shape) != 3 or ("size" in known and shape[1] != shape[2]):
        kind = "square images" if "size" in known else "images"
        raise InputError(
            f"{name} takes {kind} (channels, height, width) and an example has shape {tuple(shape)}; "
            "reshape them or use the model 'mlp'"
        )
    options = {"in_channels": shape[0], "classes": classes}
    return options | {"size": shape[1]} if "size" in known else options


def _options(name: str) -> Mapping[str, Parameter]:
    if name not in MODELS:
        raise InputError(f"no model is called {name!r}; {nearest(name, MODELS)}")
    return signature(MODELS[name]).parameters
