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
    """The layer's kernel (out, in, height, width) as a constant, or None where the layer was not joined or has been
    written over since, and where it is not worth any steps and none of those it was joined to has been asked for.
    """
    found = cast("tuple[JointKernels, int] | None", vars(layer).get(_PLACE))
    if found is None or not found[0].is_current(found[1]):
        return None
    joint, place = found
    return joint.kernel(place) if worth or joint.known else None


class JointKernels:
    """Kernels, and once one of them is asked for, all of them laid out."""

    def __init__(self, kernels: Sequence[Tensor]) -> None:
        self._kernels = kernels
        self._found: list[Tensor] = []
        self._versions = [kernel._version for kernel in kernels]

    def is_current(self, place: int) -> bool:
        """Whether a kernel is what it was when it was joined."""
        return self._kernels[place]._version == self._versions[place]

    @property
    def known(self) -> bool:
        """Whether they are laid out."""
        return bool(self._found)

    def kernel(self, place: int) -> Tensor:
        """The kernel at this place, with channels running fastest."""
        if not self._found:
            with torch.no_grad():
                self._found = _laid_out(self._kernels)
        return self._found[place]


def _laid_out(kernels: Sequence[Tensor]) -> list[Tensor]:
    """Each with channels running fastest; those alike are copied as one."""
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
