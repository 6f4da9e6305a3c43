"""Inputs that a network may accept: the probe's shape, images of the size it names, token numbers, token vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .symmetry import Probe

BATCH = 2
TOKENS = 6
SIZE_NAMES = ("image_size", "img_size")
LARGEST_GRID = 32


def example_inputs(
    module: nn.Module, *, probe: Probe | None, generator: torch.Generator
) -> Iterator[tuple[Tensor, ...]]:
    """Random arguments of `module` in float64, the likeliest first; most modules accept few of them.

    Of the probe, shape and type are used, and its values where they are integers.
    """
    if probe is not None and len(probe.retain):
        given = probe.retain[0][:BATCH]
        yield (_normal(given.shape, generator) if given.is_floating_point() else given.cpu(),)
    for shape in _image_shapes(module):
        yield (_normal(shape, generator),)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    if tables:
        yield (torch.randint(min(tables), (BATCH, TOKENS), generator=generator),)
    for width in _widths(module):
        tokens = _normal((BATCH, TOKENS, width), generator)
        yield (tokens, tokens, tokens) if isinstance(module, nn.MultiheadAttention) else (tokens,)


def _image_shapes(module: nn.Module) -> Iterator[tuple[int, ...]]:
    convolution = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
    if convolution is None:
        return
    for height, width in dict.fromkeys(_named_sizes(module)):
        yield (BATCH, convolution.in_channels, height, width)
    # One patch alone would be attended to whatever the queries are.
    for count in range(2, LARGEST_GRID + 1):
        height, width = (count * side for side in convolution.kernel_size)
        yield (BATCH, convolution.in_channels, height, width)


def _named_sizes(module: nn.Module) -> Iterator[tuple[int, int]]:
    for owner in module.modules():
        for source in (owner, getattr(owner, "config", None)):
            for name in SIZE_NAMES:
                size: Any = getattr(source, name, None)
                if isinstance(size, int):
                    yield (size, size)
                elif isinstance(size, tuple | list) and len(size) == 2:
                    yield (int(size[0]), int(size[1]))


def _widths(module: nn.Module) -> Iterable[int]:
    widths = []
    for layer in module.modules():
        if isinstance(layer, nn.MultiheadAttention):
            widths.append(layer.embed_dim)
        elif isinstance(layer, nn.Linear):
            widths.append(layer.in_features)
        elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
            widths.append(layer.normalized_shape[-1])
    return list(dict.fromkeys(widths))[:2]


def _normal(shape: Iterable[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
