"""The weights of a BigGAN-deep file as those of plain layers.

Spectrally normalised layers are stored as `weight_orig`, `weight_u` and `weight_v`, and their weight is W / (uᵀ W v).
The statistics of a batch norm are stored for evenly spaced truncations from 0 to 1, one row each.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import cast

import torch
from torch import Tensor

from ..errors import WeightsError


def plain_weights(state: Mapping[str, Tensor], *, truncation: float, source: str) -> dict[str, Tensor]:
    """The state with plain weights, and with the statistics of one truncation."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith(".weight_orig"):
            found[name.removesuffix("_orig")] = _normalised(state, name.removesuffix("_orig"), source)
        elif name.endswith((".running_means", ".running_vars")):
            found[name] = _at(tensor, truncation, name, source)
        elif not name.endswith((".weight_u", ".weight_v")):
            found[name] = tensor
    return found


def _normalised(state: Mapping[str, Tensor], name: str, source: str) -> Tensor:
    """W / (uᵀ W v), W a matrix with a row for each output."""
    weight = state[f"{name}_orig"]
    sides = [state.get(f"{name}_{side}") for side in "uv"]
    matrix = weight.flatten(1)
    for side, vector, count in zip("uv", sides, matrix.shape, strict=True):
        if vector is None or tuple(vector.shape) != (count,):
            what = "is missing" if vector is None else f"has shape {tuple(vector.shape)}"
            raise WeightsError(
                f"{name}_{side} in {source} {what} and should have {count} numbers; get the file again, or save the "
                "state dict of a BigGAN of pytorch-pretrained-biggan"
            )
    left, right = (cast(Tensor, vector).double() for vector in sides)
    norm = float(left @ matrix.double() @ right)
    if not norm > 0:
        raise WeightsError(f"{name} in {source} has the spectral norm {norm}; the file is damaged: get it again")
    return weight / norm


def _at(table: Tensor, truncation: float, name: str, source: str) -> Tensor:
    """The row of a table (steps, channels) for truncations 0 to 1 that belongs to this one, linear between two rows."""
    if table.dim() != 2 or len(table) < 2:
        raise WeightsError(
            f"{name} in {source} has shape {tuple(table.shape)}; it should hold a row for each stored truncation"
        )
    place = truncation * (len(table) - 1)
    below = min(floor(place), len(table) - 2)
    return torch.lerp(table[below], table[below + 1], place - below)
