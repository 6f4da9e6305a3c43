"""Random crops and mirror images of a whole batch, on the device of the batch.

Each image is shifted by its own offset inside a border of `padding` pixels and mirrored with probability one
half. The draws come from a CPU generator, so they are the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from ..kernels.fusing import fusing


def random_crop_flip(
    x: Tensor, *, padding: int, flip: bool, fill: Sequence[float], generator: torch.Generator
) -> Tensor:
    """Images (n, c, h, w) padded with `fill` (one value, or one a channel), cropped back to (h, w) and mirrored."""
    check_fill(x, fill)
    if padding < 0:
        raise InputError(f"a padding of {padding} pixels is negative; give 0 or more")
    if padding == 0 and not flip:
        return x
    drawn = draw_crop_flip(len(x), padding=padding, flip=flip, generator=generator).to(x.device)
    return crop_flip(x, drawn, torch.tensor(fill, dtype=x.dtype, device=x.device))


def check_fill(x: Tensor, fill: Sequence[float]) -> None:
    """An error where images `x` cannot be padded with `fill`."""
    if x.dim() != 4 or len(fill) not in (1, x.shape[1]):
        raise InputError(
            f"images of shape {tuple(x.shape)} cannot be padded with fill={tuple(fill)}; give one value or "
            "one a channel"
        )


def draw_crop_flip(count: int, *, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shifts down and right, from −padding to padding, and whether to mirror (1) or not (0), shape (count, 3)."""
    shift = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < (0.5 if flip else 0.0)
    return torch.cat([shift[0], shift[1], mirrored.long()], dim=1)


def crop_flip(x: Tensor, drawn: Tensor, fill: Tensor) -> Tensor:
    """Images (n, c, h, w) shifted and mirrored as `drawn` says, all on one device, and no value read."""
    if fusing.get():
        # In Triton, which not every machine has.
        from ..kernels import crop_flip as kernel

        if kernel.suits(x, drawn, fill):
            return kernel.crop_flip(x, drawn, fill)
    height, width = x.shape[2:]
    down, right, mirrored = drawn.unsqueeze(2).unbind(1)
    rows = torch.arange(height, device=x.device) + down
    across = torch.arange(width, device=x.device)
    columns = torch.where(mirrored > 0, width - 1 - across, across) + right
    return _pick(x, rows, columns, fill)


def _pick(x: Tensor, rows: Tensor, columns: Tensor, fill: Tensor) -> Tensor:
    """Pixels of each image at its own rows (n, h) and columns (n, w), `fill` where there are none."""
    count, channels, height, width = x.shape
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    flat = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = flat.reshape(count, 1, -1).expand(-1, channels, -1)
    picked = x.reshape(count, channels, -1).gather(2, index).reshape(x.shape)
    return torch.where(inside[:, None], picked, fill[:, None, None])
