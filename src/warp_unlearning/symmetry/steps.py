"""How the steps of a walk downhill are taken, whether operation by operation or as captured graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .forget_energy import ForgetEnergy, Slopes
from .null_projection import NullProjection
from .walk_parts import Reach, Standing


class Steps(Protocol):
    """The parts of one step after another (`walk_parts`). Nothing is read; what they give holds until the next call of
    the same part.
    """

    @property
    def begun(self) -> Tensor:
        """Where the last step began, (n)."""

    def survey(self, found: Slopes, generator: torch.Generator) -> Tensor:
        """Begin a step from where the parameters stand; the numbers of its survey."""

    def head(self, weights: Sequence[float]) -> None:
        """Choose the direction, by the share of every term."""

    def go(self, share: float) -> Standing:
        """Go such a share of the longest way that it may be followed, from where the step began."""


class Descent(NamedTuple):
    """What a walk descends, whether it keeps to directions across the slope of the loss, and the weights, by name, that
    distances are taken from; None for where it starts.
    """

    energy: ForgetEnergy
    loss: bool
    reference: Mapping[str, Tensor] | None


class RepeatedSteps(Protocol):
    """Who may have the steps of one network as captured graphs."""

    def steps(
        self, parameters: Mapping[str, nn.Parameter], projection: NullProjection, settings: Reach, descent: Descent
    ) -> Steps | None:
        """Those of a walk; None where they are to be taken operation by operation."""
