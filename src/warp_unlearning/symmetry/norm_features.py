"""The leading directions of what enters each batch norm, channel by channel: the paper's basis for its parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..linalg.subspace import Rule, Subspace, principal_subspace
from .layer_inputs import run_watched


def batch_norm_features(model: nn.Module, batches: Iterable[Tensor], energy: float, rule: Rule) -> dict[str, Subspace]:
    """For the weight and bias of every batch norm, by name: the leading directions of its input's channels, found in
    Σ x xᵀ over examples and positions, shape (C, C).
    """
    names = {id(p): name for name, p in model.named_parameters()}
    moments: dict[nn.Module, Tensor] = {}

    def record(norm: nn.Module, x: Tensor) -> None:
        rows = x.double().movedim(1, -1).flatten(0, -2)
        moment = rows.mT @ rows
        moments[norm] = moments[norm] + moment if norm in moments else moment

    run_watched(model, batches, [m for m in model.modules() if isinstance(m, _BatchNorm) and m.affine], record)
    found: dict[str, Subspace] = {}
    for norm, moment in moments.items():
        subspace = principal_subspace(moment, energy, rule=rule)
        found |= {names[id(p)]: subspace for p in norm.parameters(recurse=False) if id(p) in names}
    return found
