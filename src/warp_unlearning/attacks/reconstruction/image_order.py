"""Which of the images found for examples forgotten together belongs to which true one.

The attacker finds a set; its order means nothing. Matching each to the one it fits best flatters an attack that saw
nothing, so that labels come first, and the error decides only among images of one label.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def ordered_by_labels(found_labels: Tensor, labels: Tensor) -> bool:
    """Whether labels (n, count) alone say which image found belongs to which true one: there is one to a group, or the
    same labels in both, each once.
    """
    pairs = list(zip(found_labels.tolist(), labels.tolist(), strict=True))
    return all(len(true) == 1 or (sorted(found) == sorted(true) and len({*true}) == len(true)) for found, true in pairs)


def in_order(images: Tensor, found_labels: Tensor | None, truth: Tensor, labels: Tensor) -> Tensor:
    """Images (n, count, ...) as (n·count, ...) in the order of the truth: matched one to one within each group, by
    label first, then for the least squared error. Without `found_labels` by the error alone.
    """
    rows = []
    for i, (some, theirs) in enumerate(zip(images, truth, strict=True)):
        apart = (some[:, None] - theirs[None]).double().square().flatten(2).mean(2).cpu().numpy()
        if found_labels is not None:
            # An error is at most 1, so that no errors outweigh a label.
            apart += (len(some) + 1) * (found_labels[i][:, None] != labels[i][None]).cpu().numpy()
        row, column = linear_sum_assignment(apart)
        rows.append(some[torch.as_tensor(row[column.argsort()], device=some.device)])
    return torch.cat(rows)
