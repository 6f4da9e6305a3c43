"""*Update alignment*: does the difference of two models point along the gradient of an example's loss?

score(x) = cos(θ_new − θ_org, ∇ℓ(x; θ_org)). It is positive where the update raised the loss of x, to first order: for
examples that were forgotten. A tensor where the difference is zero throughout is not compared.

After the pre-step *scale-free* the score is the mean cosine over kernels (of a convolution; single numbers elsewhere),
which scales of channels do not change; kernels of zeros are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import InputError
from ...stats.verdict import Needs
from ..undo.base import Weights
from ..undo.channels import kernel_directions
from .base import Batch, Pair


class UpdateAlignment:
    """The cosine of the update with the gradient of an example."""

    name: ClassVar[str] = "update alignment"
    needs: ClassVar[Needs] = "both weights"

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """The cosine, or the mean over kernels where only directions of kernels are known."""
        by_kernel = pair.undone_by == "scale-free"
        unit = pair.once(
            (type(self), by_kernel), lambda: unit_update(pair.update, batch.gradients, by_kernel=by_kernel)
        )
        return update_alignment(batch.gradients, unit, by_kernel=by_kernel, squared_norms=batch.squared_norms)


def unit_update(update: Weights, gradients: Mapping[str, Tensor], *, by_kernel: bool = False) -> dict[str, Tensor]:
    """The update of the parameters that `gradients` has, at unit length over all of them, in the gradients' type; by
    kernel, the direction of each over the number of kernels. What the update lacks counts as zero.

    At unit length no update is too short for the precision of the gradients.
    """
    found: dict[str, Tensor] = {}
    for name, gradient in gradients.items():
        value = update.get(name, torch.zeros(gradient.shape[1:])).to(gradient.device).double()
        if value.shape != gradient.shape[1:]:
            raise InputError(
                f"{name!r} of the update has shape {tuple(value.shape)} and the original {tuple(gradient.shape[1:])}"
            )
        found[name] = kernel_directions(value, value.dim()) if by_kernel else value
    total = torch.stack([value.square().sum() for value in found.values()]).sum()
    # By kernel the sum of squares is the number of kernels that are compared.
    size = (total if by_kernel else total.sqrt()).clamp(min=1e-300)
    return {name: (value / size).to(gradients[name].dtype) for name, value in found.items()}


def update_alignment(
    gradients: Mapping[str, Tensor],
    unit: Weights,
    *,
    by_kernel: bool = False,
    squared_norms: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The alignment (k,) of gradients (k, *parameter), by name, with an update made by `unit_update`, in [−1, 1]; 0
    where the gradient or the update is zero. `squared_norms` are those of the gradients, if they are known.
    """
    dots, energies = [], []
    for name, gradient in gradients.items():
        g = kernel_directions(gradient, gradient.dim() - 1) if by_kernel else gradient
        dots.append((g.flatten(1) @ unit[name].flatten()).double())
        norm = gradient.flatten(1).double().square().sum(1) if squared_norms is None else squared_norms[name]
        energies.append(norm * (unit[name] != 0).any())
    found = torch.stack(dots).sum(0)
    return found if by_kernel else found / torch.stack(energies).sum(0).sqrt().clamp(min=1e-300)
