"""A parameter as kernels: what one input channel adds to one output channel, which rescaled channels multiply as one.

The kernel of a convolution (out, in, *taps) runs over its taps; in every other parameter it is a single number.
"""

from __future__ import annotations

from torch import Tensor


def kernels(value: Tensor, dims: int) -> Tensor:
    """A parameter of so many dimensions, or a stack of them, with kernels along a last axis."""
    return value.flatten(2 - dims) if dims > 2 else value.unsqueeze(-1)


def kernel_lengths(value: Tensor, dims: int) -> Tensor:
    """The length of every kernel."""
    found: Tensor = kernels(value, dims).norm(dim=-1)
    return found


def directions(value: Tensor, dims: int) -> Tensor:
    """The parameter, or the stack, with every kernel at length 1, or 0."""
    found = kernels(value, dims)
    unit: Tensor = found / found.norm(dim=-1, keepdim=True).clamp(min=tiny(value))
    return unit.reshape(value.shape)


def tiny(value: Tensor) -> float:
    """A length that nothing is divided by in the precision of `value`."""
    return 1e-300 if value.dtype.itemsize == 8 else 1e-36
