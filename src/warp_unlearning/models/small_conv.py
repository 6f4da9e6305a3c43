"""A plain convolutional network without pooling or normalisation, for square images."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .option_checks import require_positive


class SmallConv(nn.Module):
    """Three 3x3 convolutions with biases, `width`, 2 and 2 times `width` channels, the last two at a stride of 2, and a
    classifier on all positions: where something is in an image stays visible in the gradient.
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
