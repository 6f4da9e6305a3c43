"""The kernels of all convolutions of a model with channels running fastest, copied in a handful of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

# Where a layer keeps its place among those it is taken with.
_PLACE = "_place_among_convolutions"

# Numbers; libraries read a kernel faster where it begins at a multiple of these.
_ALIGNED = 64


def join_kernels(layers: Sequence[nn.Conv2d]) -> None:
    """Let the kernels of these layers be laid out together, those whose values are known before the layer is called."""
    known = [layer for layer in layers if "weight" in layer._parameters and not layer._forward_pre_hooks]
    joint = JointKernels([layer.weight for layer in known])
    for place, layer in enumerate(known):
        vars(layer)[_PLACE] = joint, place


def kernel_with_channels_last(layer: nn.Conv2d, worth: bool) -> Tensor | None:
    """The layer's kernel (out, in, height, width) as a constant, or None where the layer was not joined, and where it
    is not worth any steps and none of those it was joined to has been asked for.
    """
    joint, place = cast("tuple[JointKernels, int]", vars(layer).get(_PLACE, (None, 0)))
    return joint.kernel(place) if joint is not None and (worth or joint.known) else None


class JointKernels:
    """Kernels, and once one of them is asked for, all of them laid out."""

    def __init__(self, kernels: Sequence[Tensor]) -> None:
        self._kernels = kernels
        self._found: list[Tensor] = []

    @property
    def known(self) -> bool:
        """Whether they are laid out."""
        return bool(self._found)

    def kernel(self, place: int) -> Tensor:
        """The one at this place."""
        if not self._found:
            with torch.no_grad():
                self._found = _laid_out(self._kernels)
        return self._found[place]


def _laid_out(kernels: Sequence[Tensor]) -> list[Tensor]:
    found = [kernel.detach() for kernel in kernels]
    alike: dict[object, list[int]] = {}
    for index, kernel in enumerate(found):
        if not kernel.is_contiguous(memory_format=torch.channels_last):
            alone = index if kernel.numel() % _ALIGNED else None
            alike.setdefault((kernel.shape[1:], kernel.dtype, kernel.device, alone), []).append(index)
    for indices in alike.values():
        joint = torch.cat([found[index].permute(0, 2, 3, 1) for index in indices])
        parts = torch.split_with_sizes(joint, [found[index].shape[0] for index in indices])
        for index, part in zip(indices, parts, strict=True):
            found[index] = part.permute(0, 3, 1, 2)
    return found
