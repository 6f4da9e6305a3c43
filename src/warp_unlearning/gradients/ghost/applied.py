"""Functions of one's own for autograd, called without what torch does for its transforms (vmap, grad) at every call.

Before it calls the same in C, `torch.autograd.Function.apply` looks for tensors among the arguments that a transform
has left behind. That takes a third of the time of the call, and is done once for what enters a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

# Where it is not known whether a transform is active, all is left to torch.
_transforms_are_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
living: Callable[[Tensor], Tensor] = torch._C._functorch.unwrap_if_dead
"""The tensor itself, or what it stands for where a transform that has ended has left it behind."""


def applied(function: type[Function], *args: Any) -> Any:
    """`function.apply(*args)` of `living` tensors, for functions whose `forward` is given the context."""
    if _transforms_are_active():
        return function.apply(*args)  # type: ignore[no-untyped-call]
    return super(Function, function).apply(*args)  # type: ignore[misc]
