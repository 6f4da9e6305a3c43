"""Other forms of functions whose derivatives torch 2.13 lacks or gets wrong.

Hardsigmoid has no second derivative. A backward pass through vmap(grad) of a layer norm with trained scale is wrong:
the mean and deviation kept for the scale's gradient carry no history. Without scale and shift it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class HardsigmoidClamped(TorchFunctionMode):
    """Within the block, hardsigmoid is computed by a clamp, which can be differentiated twice."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._form(func)(*args, **(kwargs or {}))

    def _form(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return _clamped if func is F.hardsigmoid else func


class LayerNormApart(HardsigmoidClamped):
    """Within the block, layer norms are computed in two steps too, normalisation and affine map."""

    def _form(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return _in_two_steps if func in (F.layer_norm, torch.layer_norm) else super()._form(func)


def _clamped(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    # The derivative of relu6 is 0 at both ends, as hardsigmoid's is.
    return F.relu6(input + 3) / 6


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
