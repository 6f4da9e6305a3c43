"""The squared distance to where the weights started, which follows the weights across moves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..symmetry.moves import Move, compose


class Anchor:
    """‖T⁻¹(θ) − θ₀‖² over the trainable parameters, T being all moves since: the same number before and after a
    move.
    """

    def __init__(self, model: nn.Module) -> None:
        self._start = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self._back: Move | None = None

    def distance_squared(self, model: nn.Module) -> Tensor:
        """Differentiable with respect to the parameters of `model`."""
        terms = []
        for name, value in model.named_parameters():
            if name in self._start:
                pulled = value if self._back is None else self._back.point(name, value)
                terms.append((pulled - self._start[name]).square().sum())
        return torch.stack(terms).sum()

    def carry(self, move: Move | None) -> None:
        """Take one more move back before measuring."""
        if move is not None:
            self._back = move.inverse() if self._back is None else compose(move.inverse(), self._back)
