"""A random part of what enters a layer: some examples of a stream, and some patches of each of their images.

Patches are read straight from the padded image, so that those left out are never laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from .drawn_ahead import DrawnAhead
from .kernel_window import Taps, Window
from .layer_inputs import layer_rows

Draw = torch.Generator | DrawnAhead


def sampled_examples(batches: Iterable[Tensor], count: int, *, generator: torch.Generator) -> list[Tensor]:
    """`count` examples drawn without replacement from all batches, or all where there are fewer, batch by batch.

    Each example gets a random number and the smallest are kept, so that of a stream no more than `count` and one batch
    are held.
    """
    if isinstance(batches, Sequence):
        chosen = zip(batches, _smallest([len(batch) for batch in batches], count, generator), strict=True)
        picked = [batch[index.to(batch.device, non_blocking=True)] for batch, index in chosen if len(index)]
        return [part for part in picked if len(part)]
    kept: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        kept.append((batch, torch.rand(len(batch), generator=generator, dtype=torch.float64, device=generator.device)))
        numbers = torch.cat([drawn for _, drawn in kept])
        if len(numbers) > count:
            last = numbers.kthvalue(count).values
            kept = [(part[(drawn <= last).to(part.device)], drawn[drawn <= last]) for part, drawn in kept]
    return [part for part, _ in kept if len(part)]


def sampled_rows(layer: nn.Module, x: Tensor, patches: int, *, generator: Draw, taps: Taps | None = None) -> Tensor:
    """Inputs of each group of one layer as rows, (groups, positions, d), of at most `patches` places for each example.

    The places are drawn for each example by itself, without replacement. Of a convolution, `taps` are those of its
    kernel to be read, where not all are.
    """
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        flat = x.reshape(-1, x.shape[-1]) if x.dim() < 3 else x.flatten(1, -2)
        if x.dim() < 3 or flat.shape[1] <= patches:
            return layer_rows(layer, x)
        places = _places(len(flat), flat.shape[1], patches, generator, x.device)
        return flat.gather(1, places.unsqueeze(2).expand(-1, -1, flat.shape[2])).reshape(1, -1, flat.shape[2])
    window = Window(layer)
    height, width = window.grid(x)
    if height * width <= patches:
        return layer_rows(layer, x, taps=taps)
    image = window.padded(x)
    places = _places(len(image), height * width, patches, generator, x.device)
    # Channels last, so that what a tap reads is one run of memory.
    pixels = image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])
    chosen = window.all_taps if taps is None else taps
    behind = _pixels_read((height, width), window.stride, chosen, window.dilation, image.shape[3], x.device)
    firsts = _first_pixels(len(image), image.shape[2] * image.shape[3], x.device)
    if isinstance(generator, DrawnAhead):
        generator.hold(behind, firsts)
    read = torch.embedding(pixels, (torch.embedding(behind, places) + firsts).flatten(0, 1))
    return read.reshape(*read.shape[:2], layer.groups, -1).permute(2, 0, 3, 1).flatten(2)


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """The generator, or one on `device` that is seeded by it: what is drawn elsewhere has to be brought there."""
    if generator.device.type == device.type:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


def _smallest(lengths: Sequence[int], count: int, generator: torch.Generator) -> list[Tensor]:
    """A random number for each of so many, list by list, and the indices of the `count` smallest."""
    drawn = [torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device) for n in lengths]
    if sum(lengths) <= count:
        return [torch.arange(n) for n in lengths]
    last = torch.cat(drawn).kthvalue(count).values
    return [(numbers <= last).nonzero().flatten() for numbers in drawn]


def _places(examples: int, places: int, count: int, generator: Draw, device: torch.device) -> Tensor:
    """`count` different places of each example, shape (examples, count)."""
    if isinstance(generator, DrawnAhead):
        drawn = generator.uniform(examples, places)
    else:
        drawn = torch.rand(examples, places, generator=generator, device=generator.device)
    return drawn.to(device).topk(count, dim=1, sorted=False).indices


# Kept for as long as the process lives, here and below: graphs that were captured read them where they lie.
@cache
def _pixels_read(
    grid: tuple[int, int],
    stride: tuple[int, int],
    taps: Taps,
    dilation: tuple[int, int],
    width: int,
    device: torch.device,
) -> Tensor:
    """Which pixel of an image `width` wide each tap reads, for every place of the kernel in a grid of rows and columns,
    (places, taps); not to be written to.
    """
    rows, columns = torch.arange(grid[0]) * stride[0], torch.arange(grid[1]) * stride[1]
    first = (rows.unsqueeze(1) * width + columns).flatten()
    down = torch.arange(taps.top, taps.bottom) * dilation[0] * width
    right = torch.arange(taps.left, taps.right) * dilation[1]
    return (first.unsqueeze(1) + (down.unsqueeze(1) + right).flatten()).to(device)


@cache
def _first_pixels(images: int, pixels: int, device: torch.device) -> Tensor:
    """The first pixel of each image among those of all, (images, 1, 1); not to be written to."""
    return (torch.arange(images) * pixels).reshape(-1, 1, 1).to(device)
