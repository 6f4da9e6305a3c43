"""The kernels of all convolutions of a model with channels running fastest, copied in a handful of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...modules import tensor_of
from .applied import applied
from .rule import Passing

# Where a layer keeps its place among those it is taken with.
_PLACE = "_place_among_convolutions"

# A kernel for a layer, and for its derivative.
Pair = tuple[Tensor, Tensor]

# Numbers; libraries read a kernel faster where it begins at a multiple of these.
_ALIGNED = 64


def join_kernels(layers: Sequence[nn.Conv2d]) -> None:
    """Let the kernels of these layers be laid out together, those whose values are known before the layer is called."""
    known = [layer for layer in layers if "weight" in layer._parameters and not layer._forward_pre_hooks]
    joint = JointKernels([cast(Tensor, tensor_of(layer, "weight")) for layer in known])
    for place, layer in enumerate(known):
        vars(layer)[_PLACE] = joint, place


def kernel_with_channels_last(layer: nn.Conv2d, worth: bool) -> Tensor | None:
    """The layer's kernel (out, in, height, width) as a constant, or None where the layer was not joined or has been
    written over since, and where it is not worth any steps and none of those it was joined to has been asked for.
    """
    found = _place(layer, worth)
    return None if found is None else found[0].kernel(found[1])


def kernels_with_history(layer: nn.Conv2d, worth: bool, passing: Passing) -> Pair | None:
    """The same, by which the layer's kernel is given its gradient; what hands kernels over is noted in `passing`.

    It is given twice, for the layer and for its derivative: the gradients of both are added for all layers at once.
    """
    found = _place(layer, worth)
    return None if found is None else found[0].kernels_with_history(found[1], passing)


def _place(layer: nn.Conv2d, worth: bool) -> tuple[JointKernels, int] | None:
    """What the layer was joined to, and its place there, where its kernel can be had from it."""
    found: tuple[JointKernels, int] | None = vars(layer).get(_PLACE)
    if found is None or not found[0].is_current(found[1]):
        return None
    return found if worth or found[0].known else None


class JointKernels:
    """Kernels, and once one of them is asked for, all of them laid out."""

    def __init__(self, kernels: Sequence[Tensor]) -> None:
        self._kernels = kernels
        self._found: list[Tensor] = []
        self._linked: dict[int, Pair] = {}
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
        # Those that were given a history are the same tensors.
        return self._found[place].detach() if self._linked else self._found[place]

    def kernels_with_history(self, place: int, passing: Passing) -> Pair:
        """The same twice, which depend on the kernel if that is trained and its gradient may be asked for."""
        if place in self._linked:
            return self._linked[place]
        found = self.kernel(place)
        if passing.inputs_only or not self._kernels[place].requires_grad:
            return found, found
        trained = [index for index, kernel in enumerate(self._kernels) if kernel.requires_grad]
        tensors = [self._kernels[index] for index in trained]
        linked = applied(_Linked, [self._found[index] for index in trained], *tensors)
        self._linked = dict(zip(trained, zip(linked[::2], linked[1::2], strict=True), strict=True))
        passing.handing.add(linked[0].grad_fn)
        return self._linked[place]


class _Linked(torch.autograd.Function):
    """Each of the tensors `found` twice in the place of the kernel it is a copy of."""

    @staticmethod
    def forward(ctx: Any, found: list[Tensor], *kernels: Tensor) -> tuple[Tensor, ...]:
        # Kept for their versions alone, which tell whether they have been written over.
        ctx.save_for_backward(*kernels)
        ctx.set_materialize_grads(False)
        return tuple(each for kernel in found for each in (kernel, kernel.detach()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        return None, *_sums(gradients[::2], gradients[1::2])


def _sums(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Of the tensors in the same places, where None is nothing, in as few steps as if it were one."""
    found = [other if one is None else one for one, other in zip(some, others, strict=True)]
    pairs = zip(some, others, strict=True)
    both = {place: (one, other) for place, (one, other) in enumerate(pairs) if one is not None and other is not None}
    if both:
        sums = torch._foreach_add([one for one, _ in both.values()], [other for _, other in both.values()])
        for place, its in zip(both, sums, strict=True):
            found[place] = its
    return found


def _laid_out(kernels: Sequence[Tensor]) -> list[Tensor]:
    """Each with channels running fastest; those alike are copied as one."""
    found = list(kernels)
    alike: dict[object, list[int]] = {}
    for index, kernel in enumerate(kernels):
        if kernel.is_contiguous(memory_format=torch.channels_last):
            found[index] = kernel.detach()
        else:
            alone = index if kernel.numel() % _ALIGNED else None
            alike.setdefault((kernel.shape[1:], kernel.dtype, kernel.device, alone), []).append(index)
    for indices in alike.values():
        joint = torch.cat([found[index].permute(0, 2, 3, 1) for index in indices])
        parts = torch.split_with_sizes(joint.permute(0, 3, 1, 2), [found[index].shape[0] for index in indices])
        for index, part in zip(indices, parts, strict=True):
            found[index] = part
    return found
