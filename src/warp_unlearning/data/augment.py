"""Random crops and mirror images of a whole batch, on the device of the batch.

Each image is shifted by its own offset inside a border of `padding` pixels and mirrored with probability one
half. The draws come from a CPU generator, so they are the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError


def random_crop_flip(
    x: Tensor, *, padding: int, flip: bool, fill: Sequence[float], generator: torch.Generator
) -> Tensor:
    """Images (n, c, h, w) padded with `fill` (one value, or one a channel), cropped back to (h, w) and mirrored."""
    if x.dim() != 4 or len(fill) not in (1, x.shape[1]):
        raise InputError(
            f"images of shape {tuple(x.shape)} cannot be padded with fill={tuple(fill)}; give one value or "
            "one a channel"
        )
    if padding < 0:
        raise InputError(f"a padding of {padding} pixels is negative; give 0 or more")
    if padding == 0 and not flip:
        return x
    count, _, height, width = x.shape
    shift = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator).to(x.device)
    mirrored = torch.rand(count, 1, generator=generator).to(x.device) < (0.5 if flip else 0.0)
    rows = torch.arange(height, device=x.device) + shift[0]
    across = torch.arange(width, device=x.device)
    columns = torch.where(mirrored, width - 1 - across, across) + shift[1]
    return _pick(x, rows, columns, torch.tensor(fill, dtype=x.dtype, device=x.device))


def _pick(x: Tensor, rows: Tensor, columns: Tensor, fill: Tensor) -> Tensor:
    """Pixels of each image at its own rows (n, h) and columns (n, w), `fill` where there are none."""
    count, channels, height, width = x.shape
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    flat = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = flat.reshape(count, 1, -1).expand(-1, channels, -1)
    picked = x.reshape(count, channels, -1).gather(2, index).reshape(x.shape)
    return torch.where(inside[:, None], picked, fill[:, None, None])
