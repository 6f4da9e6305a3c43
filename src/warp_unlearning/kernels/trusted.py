"""Whether convolutions in their other form come out right on this device, tried once for each shape.

Libraries choose kernels by the number of multiprocessors a process may use, which NVIDIA's MPS can limit to any. With
some numbers (46, 54 and 98 of an H200's 132, bf16) trainings with these forms ended in numbers that are not finite, or
in losses of millions, where torch's own form trained well. So a form is trusted where it was seen to agree.
"""

from __future__ import annotations

from typing import NamedTuple
from warnings import warn

import torch
from torch import Tensor

from .convolution import Pair, convolve

# Rounding to bf16 makes half a percent; what was wrong was wrong by more than its own size.
_AGREES = 0.05


class Case(NamedTuple):
    """All that decides which kernels a library takes for a convolution on one device."""

    device: torch.device
    images: torch.Size
    images_dtype: torch.dtype
    images_last: bool
    kernels: torch.Size
    kernels_dtype: torch.dtype
    kernels_last: bool
    half: torch.dtype | None
    stride: Pair
    padding: Pair
    for_images: bool


_found: dict[Case, bool] = {}


def trusted(x: Tensor, weight: Tensor, *, stride: Pair, padding: Pair) -> bool:
    """Whether `convolve` of such images and kernels agrees with torch's own convolution, in value and gradients. On a
    CPU it does; while a graph is captured nothing can be tried, and what was not tried before is not trusted.
    """
    if not x.is_cuda:
        return True
    case = case_of(x, weight, stride=stride, padding=padding)
    if case not in _found:
        if torch.cuda.is_current_stream_capturing():
            return False
        _found[case] = agrees(case)
        if not _found[case]:
            warn(
                f"convolutions of images {tuple(case.images)} with kernels {tuple(case.kernels)} come out wrong here "
                "in their faster form, so torch's own is used; with another share of the GPU "
                "(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) they may not",
                stacklevel=2,
            )
    return _found[case]


def case_of(x: Tensor, weight: Tensor, *, stride: Pair, padding: Pair) -> Case:
    """The case of a convolution, in the precision of the moment."""
    kind = x.device.type
    return Case(
        x.device,
        x.shape,
        x.dtype,
        x.is_contiguous(memory_format=torch.channels_last),
        weight.shape,
        weight.dtype,
        weight.is_contiguous(memory_format=torch.channels_last),
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        stride,
        padding,
        x.requires_grad,
    )


def agrees(case: Case) -> bool:
    """Try random images, kernels and slopes in both forms, the other one in the precision of the moment and torch's
    own in float32.
    """
    draw = torch.Generator(case.device).manual_seed(0)
    x = _drawn(case.images, case.images_dtype, last=case.images_last, generator=draw).requires_grad_(case.for_images)
    weight = _drawn(case.kernels, case.kernels_dtype, last=case.kernels_last, generator=draw).requires_grad_()
    learned = [weight, x] if case.for_images else [weight]
    # Also where nothing is learned, and so that nothing of the moment reaches the reference.
    with torch.enable_grad():
        found = convolve(x, weight, None, stride=case.stride, padding=case.padding)
        with torch.autocast(case.device.type, enabled=False):
            expected = torch.conv2d(x.float(), weight.float(), None, case.stride, case.padding)
    slope = torch.randn(expected.shape, device=case.device, generator=draw)
    slopes = torch.autograd.grad(found, learned, slope.to(found.dtype))
    wanted = torch.autograd.grad(expected, learned, slope)
    pairs = zip((found, *slopes), (expected, *wanted), strict=True)
    return all(_is_near(a.detach(), b.detach()) for a, b in pairs)


def _drawn(shape: torch.Size, dtype: torch.dtype, *, last: bool, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, device=generator.device, generator=generator).to(dtype)
    return drawn.contiguous(memory_format=torch.channels_last) if last else drawn


def _is_near(found: Tensor, expected: Tensor) -> bool:
    # A comparison with what is not a number is False.
    return bool((found.float() - expected.float()).norm() <= _AGREES * expected.float().norm())
