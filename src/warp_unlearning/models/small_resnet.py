"""A residual network of three blocks for images of 8x8 to 32x32, small enough to train on a CPU."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from .basic_block import BasicBlock, initialise_convolutions
from .normalisation import norm_relu
from .option_checks import require_positive


class SmallResNet(nn.Module):
    """A 3x3 stem, three basic blocks with `width`, 2 and 4 times `width` channels, and a classifier; `stem_stride` 2
    quarters the work on larger images.
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

    def reset_parameters(self) -> None:
        """Draw the convolutions anew; batch norms and the classifier start as their own layers do."""
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, in_channels, h, w)."""
        features = norm_relu(self.bn1, self.conv1(x))
        features = self.layer3(self.layer2(self.layer1(features)))
        return cast(Tensor, self.fc(features.mean(dim=(2, 3))))
