"""*scale-free*: the directions of kernels alone.

A step taken in a basis with the factors τ is, in the original's coordinates, g_ij τ_j² / τ_i² for the kernel from
channel j to channel i: the direction of each kernel is that of the gradient, whatever the factors are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .kernels import directions
from .probe_gradients import ProbeGradients
from .protocol import Held, NamedStep, Undo
from .states import CleanedDifference, at_length_of


@dataclass(frozen=True)
class ScaleFree(NamedStep):
    """Every kernel of the difference keeps its direction and gets the length that probe gradients like it have there;
    the whole keeps the length of the difference.
    """

    step_name: ClassVar[str] = "scale-free"

    def prepared(self, held: Held) -> Undo:
        """Take the probe gradients."""
        probes = held.once(ProbeGradients)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            lengths = probes.lengths_near(delta)
            found = {}
            for name, value in delta.items():
                shape = [*lengths[name].shape, *[1] * (value.dim() - lengths[name].dim())]
                found[name] = directions(value, value.dim()) * lengths[name].reshape(shape)
            return at_length_of(found, delta)

        return CleanedDifference(held, clean)
