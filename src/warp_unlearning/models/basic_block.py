"""The basic residual block, relu(BN(conv(relu(BN(conv(x))))) + shortcut(x)), and its initial convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from .normalisation import norm_relu


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each with batch norm, added to a shortcut.

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


def initialise_convolutions(model: nn.Module) -> None:
    """Draw every kernel of `model` from N(0, 2 / fan_out), which keeps the variance of gradients."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
