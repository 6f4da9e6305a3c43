"""relu that is cheaper to differentiate twice, for as long as that is wanted.

The derivative of relu(x) is G where x > 0, which autograd takes as a function of G and of relu(x), and whose own
derivative it finds with respect to both: zeros for the latter, written down and added. Taken as a function of G and a
constant it is its own derivative. In return x is kept for the backward pass instead of relu(x), so that it must not be
written over: this is for networks that make x for relu alone.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

differentiated_twice: ContextVar[bool] = ContextVar("differentiated_twice", default=False)
"""True while a network is called whose output will be differentiated twice."""

# Looked up once: it takes as long as the operation.
_where_positive = torch.ops.aten.threshold_backward.default


def rectified(x: Tensor) -> Tensor:
    """relu(x)."""
    if not differentiated_twice.get() or not x.requires_grad:
        return F.relu(x)
    # x where x > 0, and else 0: what the derivative does to G is what the function does to x.
    return cast(Tensor, _where_positive(x, x.detach(), 0))
