"""Attention by plain products, which can be differentiated twice, by rule and by example."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel

from ..waiting import keeping_turn


@contextmanager
def math_attention() -> Iterator[None]:
    """Within the block attention has no fused form. The switch is the process's, so a thread that takes turns keeps its
    turn.
    """
    with keeping_turn(), sdpa_kernel(SDPBackend.MATH):
        yield
