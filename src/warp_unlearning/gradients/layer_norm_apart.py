"""LayerNorm as a normalisation followed by its affine map, for transforms that mishandle the two together.

A backward pass through vmap(grad) of a layer norm with trained scale is wrong in torch 2.13: the mean and deviation
kept for the scale's gradient carry no history. Without scale and shift it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class LayerNormApart(TorchFunctionMode):
    """Within the block, layer norms are computed in two steps."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (F.layer_norm, torch.layer_norm):
            return _in_two_steps(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _in_two_steps(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    normal = F.layer_norm(input, list(normalized_shape), eps=eps)
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias
