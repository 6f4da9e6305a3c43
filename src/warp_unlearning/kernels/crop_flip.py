"""Images shifted and mirrored, each by numbers of its own, in one kernel."""

# Triton's language is not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def crop_flip(x: Tensor, drawn: Tensor, fill: Tensor) -> Tensor:
    """Image n at (row, column) is image n of `x` (n, c, h, w) at (row + down, column' + right) with column' counted
    from the other side where it is mirrored, and `fill`, of one number or c, where `x` has no such pixel. `drawn` is
    (n, 3): down, right, mirrored. Channels are last in the result.
    """
    y = torch.empty_like(x, memory_format=torch.channels_last)
    grid = (triton.cdiv(x.numel(), _BLOCK),)
    _crop_flip[grid](x, drawn, fill, y, x.numel(), *x.shape[1:], *x.stride(), ONE=len(fill) == 1, BLOCK=_BLOCK)
    return y


def suits(x: Tensor, drawn: Tensor, fill: Tensor) -> bool:
    """Whether `crop_flip` can be used: images that want no gradient, all tensors alone in their memory."""
    return (
        x.is_floating_point()
        and not x.requires_grad
        and 0 < x.numel() < 2**31
        and drawn.is_contiguous()
        and fill.is_contiguous()
    )


@triton.jit
def _crop_flip(
    x, drawn, fill, y, count, c, h, w, by_n, by_c, by_h, by_w, ONE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = i < count
    channel, column, row, image = i % c, i // c % w, i // (c * w) % h, i // (c * w * h)
    down = tl.load(drawn + 3 * image, mask=known, other=0).to(tl.int32)
    right = tl.load(drawn + 3 * image + 1, mask=known, other=0).to(tl.int32)
    mirrored = tl.load(drawn + 3 * image + 2, mask=known, other=0) > 0
    v = row + down
    u = tl.where(mirrored, w - 1 - column, column) + right
    inside = known & (v >= 0) & (v < h) & (u >= 0) & (u < w)
    value = tl.load(x + image * by_n + channel * by_c + v * by_h + u * by_w, mask=inside, other=0.0)
    border = tl.load(fill + (0 * channel if ONE else channel), mask=known, other=0.0)
    tl.store(y + i, tl.where(inside, value, border), mask=known)
