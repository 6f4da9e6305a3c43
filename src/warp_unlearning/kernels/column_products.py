"""Sums over all positions of images whose channels are last in memory: of one, and of its product with another.

Both are found in one pass over the images, where a product and two sums would be three and write the product down.
Every program adds up a stretch of rows, and what they found is added in a fixed order: results are the same each time.
"""

# Triton's language is not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_STRETCHES, _LEAST_ROWS, _ROWS, _COLUMNS = 1024, 256, 64, 64


def column_products(u: Tensor, a: Tensor, *, like_images: bool = False) -> tuple[Tensor, Tensor]:
    """Σ u·a and Σ u over images and positions of u and a (n, c, h, w), shapes (c,) or, like images, (1, c, 1, 1)."""
    columns = u.shape[1]
    rows = u.numel() // columns
    stretches = max(1, min(_STRETCHES, rows // _LEAST_ROWS))
    block = min(_COLUMNS, 1 << (columns - 1).bit_length())
    ones = (1, 1) if like_images else ()
    sums = torch.empty(2, stretches, columns, *ones, device=u.device, dtype=torch.float32)
    # Triton's own functions for this take longer than the rest.
    grid = (-(-columns // block), stretches)
    _products[grid](u, a, sums, rows, columns, -(-rows // stretches), stretches, ROWS=_ROWS, COLUMNS=block)
    products, alone = sums.sum(1, keepdim=like_images).unbind()
    return products, alone


def suits(*images: Tensor) -> bool:
    """Whether `column_products` can be used: images of one shape in float32, none empty, with channels last."""
    first = images[0]
    return (
        first.dim() == 4
        and 0 < first.numel() < 2**31
        and all(
            x.shape == first.shape and x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
            for x in images
        )
    )


@triton.jit(do_not_specialize=("m", "stretch", "stretches"))
def _products(u, a, sums, m, n, stretch, stretches, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    s = tl.program_id(1)
    is_column = c < n
    products, alone = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    last = tl.minimum((s + 1) * stretch, m)
    for i in range(s * stretch, last, ROWS):
        r = i + tl.arange(0, ROWS)
        inside = (r < last)[:, None] & is_column[None, :]
        at = r[:, None] * n + c[None, :]
        value = tl.load(u + at, mask=inside, other=0.0)
        products += tl.sum(value * tl.load(a + at, mask=inside, other=0.0), 0)
        alone += tl.sum(value, 0)
    tl.store(sums + s * n + c, products, mask=is_column)
    tl.store(sums + (stretches + s) * n + c, alone, mask=is_column)
