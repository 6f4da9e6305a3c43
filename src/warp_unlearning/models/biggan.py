"""BigGAN-deep generators from weight files in the layout of `pytorch-pretrained-biggan`, as stages.

The files (biggan-deep-128, -256 and -512) are not part of this package and nothing is fetched: give the path of one.
The sizes of all layers follow from the shapes in it; that every second block doubles the resolution is the same in all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import InputError, WeightsError
from .biggan_layers import COLOURS, SIDE, Block, First, Last, PlainNorm, SelfAttention
from .biggan_weights import plain_weights
from .staged import generate
from .weights import load_weights, read_weights


@dataclass(frozen=True)
class BigGANLayout:
    """The sizes of a generator. `layers` are the channels (in, out) of each block, or None for self-attention."""

    noise: int
    embedding: int
    classes: int
    layers: tuple[tuple[int, int] | None, ...]

    @property
    def condition(self) -> int:
        """Numbers that every block is conditioned on: noise and the embedding of the class."""
        return self.noise + self.embedding

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of the first features and of the last."""
        blocks = [layer for layer in self.layers if layer is not None]
        return blocks[0][0], blocks[-1][1]

    @property
    def size(self) -> int:
        """Height and width of an image: 4, doubled by every second block."""
        return int(SIDE * 2 ** (sum(layer is not None for layer in self.layers) // 2))


class BigGAN(nn.Module):
    """Colour images of `size` by `size` pixels from latents and labels, in stages.

    Latents are standard normal; the noise that the network sees is `truncation` times them. Every block is conditioned
    on noise and class together, so the condition holds the latents, stage 0 reads them from there, and features of a
    later stage go with the condition of the latents they came from.
    """

    def __init__(self, layout: BigGANLayout, *, truncation: float, size: int | None = None) -> None:
        super().__init__()
        self.layout, self.truncation = layout, truncation
        size = size or layout.size
        self.latent, self.classes = (layout.noise,), layout.classes
        self.image_shape = (COLOURS, size, size)
        self.embeddings = nn.Linear(layout.classes, layout.embedding, bias=False)
        first, last = layout.channels
        self.generator = nn.Module()
        self.generator.gen_z = nn.Linear(layout.condition, SIDE * SIDE * first)
        self.generator.layers = nn.ModuleList(_layers(layout))
        self.generator.bn = PlainNorm(last)
        self.generator.conv_to_rgb = nn.Conv2d(last, last, 3, padding=1)

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The linear map, every layer, and the one that makes the image."""
        parts = self.generator
        last = Last(cast(nn.Module, parts.bn), cast(nn.Module, parts.conv_to_rgb), self.image_shape[1])
        return [First(cast(nn.Linear, parts.gen_z)), *cast(nn.ModuleList, parts.layers), last]

    def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Noise and the embedding of the class side by side, (n, noise + embedding)."""
        return torch.cat([self.truncation * latents, self.embeddings.weight.t()[labels]], dim=1)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        """The images (n, 3, size, size) of latents (n, noise) and labels (n,)."""
        return generate(self, latents, labels)


def load_biggan(path: Path, *, truncation: float = 1.0, size: int | None = None) -> BigGAN:
    """The generator in `path` (.bin, .pt or .safetensors), in eval mode and frozen.

    `truncation`, above 0 and at most 1, scales the noise and chooses the statistics of the batch norms; between two
    that are stored they are interpolated. `size` reduces images to so many pixels on a side, by averages over areas.
    """
    if not 0 < truncation <= 1:
        raise InputError(f"truncation is {truncation}; give a number above 0 and at most 1")
    state = plain_weights(read_weights(path).state, truncation=truncation, source=str(path))
    layout = _layout_of(state, str(path))
    if size is not None and not 1 <= size <= layout.size:
        raise InputError(
            f"images of {layout.size} by {layout.size} pixels cannot be reduced to {size}; give 1 to {layout.size}"
        )
    model = BigGAN(layout, truncation=truncation, size=size)
    load_weights(model, state, source=str(path))
    return model.eval().requires_grad_(False)


def _layers(layout: BigGANLayout) -> list[nn.Module]:
    made: list[nn.Module] = []
    blocks = 0
    channels = layout.channels[0]
    for layer in layout.layers:
        if layer is None:
            made.append(SelfAttention(channels))
            continue
        made.append(Block(*layer, layout.condition, up=blocks % 2 == 1))
        blocks, channels = blocks + 1, layer[1]
    return made


def _layout_of(state: Mapping[str, Tensor], source: str) -> BigGANLayout:
    """The sizes that the shapes in a file imply."""
    numbers = [int(m[1]) for name in state if (m := re.match(r"generator\.layers\.(\d+)\.", name))]
    layers: list[tuple[int, int] | None] = []
    for i in range(max(numbers, default=-1) + 1):
        at = f"generator.layers.{i}"
        if f"{at}.gamma" in state:
            layers.append(None)
        else:
            inside, outside = (_shape(state, f"{at}.conv_{k}.weight", 4, source) for k in (0, 3))
            layers.append((inside[1], outside[0]))
    if not any(layers):
        raise WeightsError(f"{source} has no generator.layers; it is no BigGAN of pytorch-pretrained-biggan")
    embedding, classes = _shape(state, "embeddings.weight", 2, source)
    noise = _shape(state, "generator.gen_z.weight", 2, source)[1] - embedding
    if noise < 1:
        raise WeightsError(
            f"{source} has class embeddings of {embedding} numbers and a gen_z that takes {noise + embedding}, which "
            "leaves none for noise; the file is damaged or of another layout"
        )
    return BigGANLayout(noise, embedding, classes, tuple(layers))


def _shape(state: Mapping[str, Tensor], name: str, axes: int, source: str) -> tuple[int, ...]:
    if name not in state or state[name].dim() != axes:
        what = "is missing" if name not in state else f"has shape {tuple(state[name].shape)}"
        raise WeightsError(f"{name} in {source} {what}; it is no BigGAN-deep of pytorch-pretrained-biggan, or damaged")
    return tuple(state[name].shape)
