"""Backward passes that can be differentiated no further, and say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.autograd.function import once_differentiable

Backward = TypeVar("Backward", bound=Callable[..., Any])


def differentiable_once(backward: Backward) -> Backward:
    """As torch's `once_differentiable`, which takes as long as an operation even where nothing is recorded."""
    refusing = once_differentiable(backward)

    @wraps(backward)
    def either(ctx: Any, *gradients: Any) -> Any:
        return refusing(ctx, *gradients) if torch.is_grad_enabled() else backward(ctx, *gradients)

    return cast(Backward, either)
