"""A random part of what enters a layer: some examples of a stream, and some patches of each of their images.

Patches are read straight from the padded image, so that those left out are never laid out.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layer_inputs import Window, layer_rows


def sampled_examples(batches: Iterable[Tensor], count: int, *, generator: torch.Generator) -> list[Tensor]:
    """`count` examples drawn without replacement from all batches, or all where there are fewer, batch by batch.

    Each example gets a random number and the smallest are kept, so no more than `count` and one batch are held.
    """
    kept: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        kept.append((batch, torch.rand(len(batch), generator=generator, dtype=torch.float64, device=generator.device)))
        numbers = torch.cat([drawn for _, drawn in kept])
        if len(numbers) > count:
            last = numbers.kthvalue(count).values
            kept = [(part[(drawn <= last).to(part.device)], drawn[drawn <= last]) for part, drawn in kept]
    return [part for part, _ in kept if len(part)]


def sampled_rows(layer: nn.Module, x: Tensor, patches: int, *, generator: torch.Generator) -> Tensor:
    """Inputs of each group of one layer as rows, (groups, positions, d), of at most `patches` places for each example.

    The places are drawn for each example by itself, without replacement.
    """
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        flat = x.reshape(-1, x.shape[-1]) if x.dim() < 3 else x.flatten(1, -2)
        if x.dim() < 3 or flat.shape[1] <= patches:
            return layer_rows(layer, x)
        places = _places(len(flat), flat.shape[1], patches, generator, x.device)
        return flat.gather(1, places.unsqueeze(2).expand(-1, -1, flat.shape[2])).reshape(1, -1, flat.shape[2])
    window = Window(layer)
    image = window.padded(x)
    height, width = window.grid(image)
    if height * width <= patches:
        return layer_rows(layer, x)
    places = _places(len(image), height * width, patches, generator, x.device)
    # Channels last, so that what a tap reads is one run of memory.
    pixels = image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])
    first = places // width * window.stride[0] * image.shape[3] + places % width * window.stride[1]
    first = first + torch.arange(len(image), device=x.device).unsqueeze(1) * (image.shape[2] * image.shape[3])
    taps = _taps(window, image.shape[3]).to(x.device)
    read = F.embedding(first.flatten().unsqueeze(1) + taps, pixels)
    return read.reshape(*read.shape[:2], layer.groups, -1).permute(2, 0, 3, 1).flatten(2)


def _places(examples: int, places: int, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`count` different places of each example, shape (examples, count)."""
    drawn = torch.rand(examples, places, generator=generator, device=generator.device)
    return drawn.to(device).topk(count, dim=1, sorted=False).indices


def _taps(window: Window, width: int) -> Tensor:
    """How far each tap of a kernel lies behind the first, in the pixels of an image `width` wide."""
    down = torch.arange(window.kernel[0]) * window.dilation[0] * width
    right = torch.arange(window.kernel[1]) * window.dilation[1]
    return (down.unsqueeze(1) + right).flatten()
