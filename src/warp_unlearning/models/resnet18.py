"""ResNet-18 (He et al., 2016), with the state-dict layout that published ResNet-18 weights have."""

from __future__ import annotations

from typing import Literal, cast, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError, nearest
from .basic_block import BasicBlock, initialise_convolutions
from .normalisation import norm_relu
from .option_checks import require_positive

Stem = Literal["imagenet", "cifar"]


class ResNet18(nn.Module):
    """Four stages of two basic blocks, with `width`, 2, 4 and 8 times `width` channels, and a classifier.

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

    def reset_parameters(self) -> None:
        """Draw the convolutions anew; batch norms and the classifier start as their own layers do."""
        initialise_convolutions(self)

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
