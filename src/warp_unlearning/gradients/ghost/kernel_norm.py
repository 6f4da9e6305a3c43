"""nᵢ = ‖∂ℓᵢ/∂W‖² of a convolution's kernel, by the contraction that suits the device and the shapes.

On a CPU by steps small enough for its caches, of which nothing is kept for the backward pass but a and G; on a GPU by
few large ones, which keep what they have computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from .geometry import Geometry, without_idle_taps
from .gram import Gram
from .grouped import Grouped
from .grouped_last import GroupedLast
from .kernel_contraction import KernelContraction, Size
from .one_position import OnePosition
from .patches import Patches
from .precision import convolutions_round
from .summand import Entry, Summand
from .windowed_gram import WindowedGram

_GRAM, _GROUPED, _ONE_POSITION = Gram(), Grouped(), OnePosition()
_WINDOWED_GRAM, _GROUPED_LAST, _PATCHES = WindowedGram(), GroupedLast(), Patches()
_ON_CPUS, _ON_GPUS, _ON_GPUS_IN_GROUPS = (_GRAM, _GROUPED), (_WINDOWED_GRAM, _PATCHES), (_WINDOWED_GRAM, _GROUPED_LAST)


def kernel_entry(a: Sequence[Tensor], g: Sequence[Tensor], geometry: Geometry) -> Entry:
    """nᵢ summed over layers of one geometry and shape, as a summand of their images (batch, channels, height, width)
    and their output gradients.
    """
    return _KernelNorms(geometry), (*a, *g)


def better_together(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Whether the norms of several layers like this one are found faster if their images are concatenated."""
    outputs = _size(g)
    inputs = outputs if geometry.steps_over else _size(a)
    return contraction_for(a.device, a.dtype, inputs, outputs, _simplified(geometry, inputs, outputs)).together


def _size(images: Tensor) -> Size:
    _, _, height, width = images.shape
    return height, width


def contraction_for(
    device: torch.device, dtype: torch.dtype, inputs: Size, outputs: Size, geometry: Geometry
) -> KernelContraction:
    """The fastest for a layer of one group whose images have these heights and widths."""
    if device.type == "cpu":
        return _fastest(_ON_CPUS, inputs, outputs, geometry)
    # A GPU has fast convolutions of groups in TF32.
    in_groups = dtype == torch.float32 and geometry.is_fast_in_groups and convolutions_round()
    return _fastest(_ON_GPUS_IN_GROUPS if in_groups else _ON_GPUS, inputs, outputs, geometry)


@lru_cache(maxsize=256)
def _fastest(ways: tuple[KernelContraction, ...], inputs: Size, outputs: Size, geometry: Geometry) -> KernelContraction:
    if _ONE_POSITION.suits(inputs, outputs, geometry):
        return _ONE_POSITION
    return min(ways, key=lambda way: way.cost(inputs, outputs, geometry))


@lru_cache(maxsize=256)
def _simplified(geometry: Geometry, inputs: Size, outputs: Size) -> Geometry:
    """The geometry of a single group, of the inputs that are not left out, and of the taps that see any."""
    if geometry.groups > 1:
        geometry = replace(geometry, out=geometry.out // geometry.groups, groups=1)
    if geometry.steps_over:
        return replace(geometry, stride=(1, 1))
    return without_idle_taps(geometry, inputs, outputs)


def images_at_once(count: int, numbers: int, chunk: int) -> int:
    """How many of `count` images are worked on together: shares as equal as they can be, of at most `chunk` numbers."""
    pieces = -(-count * numbers // chunk)
    return -(-count // min(pieces, count))


def _taken(a: Tensor, stride: Size) -> Tensor:
    """Every so many rows and columns."""
    return a[:, :, :: stride[0], :: stride[1]]


class _KernelNorms(Summand):
    """Of the images of every layer and then every output gradient. Groups are taken as images of their own."""

    def __init__(self, geometry: Geometry) -> None:
        self._groups = geometry.groups
        self._geometry = geometry
        self._stride = geometry.stride if geometry.steps_over else None

    def norms(self, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, Sequence[Tensor]]:
        """What is contracted is kept, where it is not the tensors themselves, and what the contraction keeps."""
        layers = len(tensors) // 2
        a, g = self._contracted(tensors)
        a_given, g_given = self._is_given = (a is tensors[0], g is tensors[layers])
        own = [] if a_given else [a]
        own += [] if g_given else [g]
        inputs, outputs = _size(a), _size(g)
        geometry = self._geometry = _simplified(self._geometry, inputs, outputs)
        way = self._way = contraction_for(a.device, a.dtype, inputs, outputs, geometry)
        self._some = images_at_once(a.shape[0], way.numbers(inputs, outputs, geometry), way.chunk)
        wants_a, wants_g = any(wanted[:layers]), any(wanted[layers:])
        found = [way.norms(x, y, geometry, wants_a=wants_a, wants_g=wants_g) for x, y in self._pieces(a, g)]
        norms = found[0][0] if len(found) == 1 else torch.cat([norms for norms, _ in found])
        if self._groups > 1:
            norms = norms.view(-1, self._groups).sum(1)
        return norms, (*own, *(tensor for _, kept in found for tensor in kept))

    def pullbacks(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool], twice: Tensor
    ) -> Sequence[Tensor | None]:
        """By the contraction, and for inputs that are stepped over zeros."""
        layers = len(tensors) // 2
        waiting = list(kept)
        a_given, g_given = self._is_given
        a = tensors[0] if a_given else waiting.pop(0)
        g = tensors[layers] if g_given else waiting.pop(0)
        twice = twice if self._groups == 1 else twice.repeat_interleave(self._groups)
        # Not by `repeat`, which takes several steps of the host.
        twice = twice if layers == 1 else torch.cat([twice] * layers)
        for_a, for_g = self._of_pieces(a, g, waiting, twice, wants_a=any(wanted[:layers]))
        of_a = [None] * layers if for_a is None else self._at_layers(for_a, tensors[:layers])
        return *of_a, *_apart(for_g, tensors[layers:])

    def _contracted(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        layers = len(tensors) // 2
        a = tensors[:layers] if self._stride is None else [_taken(x, self._stride) for x in tensors[:layers]]
        return _joined(a, self._groups, copied=self._stride is not None), _joined(tensors[layers:], self._groups)

    def _pieces(self, a: Tensor, g: Tensor) -> list[tuple[Tensor, Tensor]]:
        # A whole is not cut: that would be two operations.
        if a.shape[0] <= self._some:
            return [(a, g)]
        return [(a[i : i + self._some], g[i : i + self._some]) for i in range(0, a.shape[0], self._some)]

    def _of_pieces(
        self, a: Tensor, g: Tensor, kept: Sequence[Tensor], twice: Tensor, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """At the inputs that are not stepped over, where wanted, and at g."""
        pieces = self._pieces(a, g)
        if len(pieces) == 1:
            return self._way.pullbacks(a, g, tuple(kept), twice, self._geometry, wants_a=wants_a)
        for_a, for_g = torch.empty_like(a) if wants_a else None, torch.empty_like(g)
        each = len(kept) // len(pieces)
        for index, pair in enumerate(pieces):
            part, own = (slice(index * many, (index + 1) * many) for many in (self._some, each))
            of_a, of_g = self._way.pullbacks(*pair, tuple(kept[own]), twice[part], self._geometry, wants_a=wants_a)
            for_g[part] = of_g
            if for_a is not None and of_a is not None:
                for_a[part] = of_a
        return for_a, for_g

    def _at_layers(self, found: Tensor, images: Sequence[Tensor]) -> list[Tensor | None]:
        if self._stride is None:
            return _apart(found, images)
        # In the layout of the input, which what comes from elsewhere has too.
        whole: list[Tensor | None] = []
        for part, image in zip(found.chunk(len(images)), images, strict=True):
            whole.append(torch.zeros_like(image))
            taken = _taken(cast(Tensor, whole[-1]), self._stride)
            taken.copy_(part.reshape(taken.shape))
        return whole


def _joined(images: Sequence[Tensor], groups: int, *, copied: bool = False) -> Tensor:
    """Those of all layers in a row, with every group as an image of its own; with `copied` they are the caller's."""
    one = torch.cat(list(images)) if len(images) > 1 else images[0].clone() if copied else images[0]
    return one if groups == 1 else one.reshape(one.shape[0] * groups, -1, *one.shape[2:])


def _apart(found: Tensor, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """What was found for `_joined` tensors, for each of them."""
    parts = [found] if len(tensors) == 1 else found.chunk(len(tensors))
    shape = tensors[0].shape
    return [part if part.shape == shape else part.reshape(shape) for part in parts]
