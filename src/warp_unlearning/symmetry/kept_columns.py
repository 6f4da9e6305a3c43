"""The coordinates of a weight's inputs without those where a kernel meets nothing but padding.

Of a 3x3 kernel on maps of one pixel one tap of nine is left, and of the second moment of its inputs one part of 81.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .kernel_window import Taps, Window, kernel_of
from .linear_weights import LinearWeight


@dataclass(frozen=True, eq=False)
class KeptColumns:
    """Which of `d` coordinates are kept, and which are not: taps of a kernel that meet nothing but padding.

    A tap is kept with all of its channels. A channel that is never active may be so later, padding is what it is.
    """

    d: int
    kept: Tensor
    others: Tensor
    # The taps that are kept, where they are a rectangle.
    taps: Taps | None

    @classmethod
    def of(cls, alive: Tensor, weight: LinearWeight, device: torch.device) -> KeptColumns | None:
        """Those of the taps that `alive`, bool (groups, d) on the host, marks in some channel; None for all, or where
        nothing is.
        """
        taps = weight.tensor.shape[2:].numel()
        met = alive.any(0)[: weight.d].reshape(-1, taps).any(0)
        if bool(met.all()) or not bool(met.any()):
            return None
        some = torch.cat([met.repeat(weight.d // taps), met.new_ones(alive.shape[1] - weight.d)])
        kept, others = ((mask.nonzero().flatten()).to(device) for mask in (some, ~some))
        return cls(len(some), kept, others, _rectangle(met.reshape(kernel_of(weight))))

    def taps_on(self, layer: nn.Module, x: Tensor) -> Taps | None:
        """The taps that are kept, where the shape of the layer's input says that the others meet nothing but padding;
        None where it does not, or where they are no rectangle.
        """
        if self.taps is None or not isinstance(layer, nn.Conv1d | nn.Conv2d):
            return None
        return self.taps if Window(layer).met_taps(x) == self.taps else None


def _rectangle(met: Tensor) -> Taps | None:
    """The rectangle that bool (rows, columns) marks, None where it marks something else."""
    down, across = met.any(1).nonzero().flatten().tolist(), met.any(0).nonzero().flatten().tolist()
    taps = Taps(down[0], down[-1] + 1, across[0], across[-1] + 1)
    return taps if bool(met[taps.top : taps.bottom, taps.left : taps.right].all()) else None
