"""The gradient energies of forgotten examples under a model, for the plots of risk against the norm of a gradient."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..data.examples import TensorExamples
from ..errors import InputError
from ..gradients.energy import gradient_energy

_AT_ONCE = 256


def forget_energies(model: nn.Module, examples: TensorExamples) -> NDArray[np.float64]:
    """‖∇ℓᵢ‖² of every example; NaN throughout where the network does not allow it."""
    copy = deepcopy(model).requires_grad_(True)
    try:
        with torch.no_grad():
            parts = [
                gradient_energy(copy, *part)
                for part in zip(torch.split(examples.x, _AT_ONCE), torch.split(examples.y, _AT_ONCE), strict=True)
            ]
    except InputError:
        return np.full(len(examples), np.nan)
    return np.asarray(torch.cat(parts).double().cpu().numpy(), dtype=np.float64)
