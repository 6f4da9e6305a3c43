"""Which parameters a null-space move may touch, and why the others stay.

A weight may move if everything that reads it is a Linear or Conv layer whose inputs were seen, for a shift orthogonal
to those inputs changes no output. One-dimensional parameters have no such directions: a bias moves only together with
its weight, whose basis then ends in the constant input 1; the affine of a batch norm acts on each channel by itself, so
that its projection by the channels' features (`batch_norm="project"`) does change the function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..gradients.uses import Trace, parameters_used_elsewhere, traced_copy
from ..linalg.subspace import Subspace
from ..module_tree import parameters_by_name
from .directions import Direction
from .input_bases import InputBasis
from .null_projection import NullProjection


@dataclass(frozen=True, eq=False)
class Scope:
    """Bases of the movable weights, feature subspaces of projected batch-norm parameters, and why each other stays."""

    bases: Mapping[str, InputBasis]
    features: Mapping[str, Subspace]
    left: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """Every parameter that may move."""
        paired = [name for basis in self.bases.values() for name in (basis.weight, self.bias_of(basis)) if name]
        return [*paired, *self.features]

    def bias_of(self, basis: InputBasis) -> str | None:
        """The bias that moves with the weight of a basis."""
        return None if basis.bias in self.left else basis.bias

    def project(self, direction: Mapping[str, Tensor]) -> Direction:
        """The part of a direction, given for every name of `names`, that the move may take; zero where what is left of
        a tensor is no more than rounding error, which would point anywhere.
        """
        if not self.names:
            return {}
        projection = NullProjection(self, direction)
        return projection.layout.scattered(projection(projection.layout.gathered(direction).unsqueeze(0))[0])

    def reached(self, values: Mapping[str, Tensor]) -> Direction:
        """The values with zeros where no input reaches them."""
        if not self.names:
            return {}
        projection = NullProjection(self, values)
        return projection.layout.scattered(projection.reached(projection.layout.gathered(values)))


def scope_of(
    model: nn.Module,
    bases: Mapping[str, InputBasis],
    x: Tensor,
    features: Mapping[str, Subspace],
    *,
    misread: set[int] | None = None,
) -> Scope:
    """The scope of a move of `model` whose layers have `bases`; `x` is a batch that shows who reads what, where
    `misread`, the outcome of `read_by_others`, is not known.
    """
    parameters = parameters_by_name(model)
    misread = read_by_others(model, x[:1]) if misread is None else misread
    biases = {n for n, p in parameters.items() if p.requires_grad and id(p) not in misread}
    movable: dict[str, InputBasis] = {}
    left: dict[str, str] = {}
    for name, p in parameters.items():
        basis = bases.get(name)
        reason = _why_not(p, basis, misread, bias_moves=basis is not None and basis.bias in biases)
        if reason is not None:
            left[name] = reason
        elif basis is not None:
            _check_precision(name, p)
            movable[name] = basis
    for name in [b.bias for b in movable.values() if b.bias is not None]:
        if name in biases:
            left.pop(name, None)
        else:
            left.setdefault(name, "a buffer, not a parameter")
    projected = {n: s for n, s in features.items() if parameters[n].requires_grad}
    return Scope(movable, projected, {n: why for n, why in left.items() if n not in projected})


def _why_not(p: nn.Parameter, basis: InputBasis | None, misread: set[int], *, bias_moves: bool) -> str | None:
    if not p.requires_grad:
        return "frozen: requires_grad is False"
    if basis is None and p.dim() < 2:
        return "one-dimensional"
    if id(p) in misread:
        return "read by something other than a Linear or Conv layer"
    if basis is None:
        return "read by no Linear or Conv layer that the batch reached"
    if _free(basis, bias_moves=bias_moves) <= 0:
        return "no null space: the inputs span every direction that any input reaches"
    return None


def _free(basis: InputBasis, *, bias_moves: bool) -> int:
    """Reached directions left to an update of the weight, and of the bias where it moves."""
    if bias_moves or basis.bias is None:
        return basis.free
    return int(basis.reached[:, :-1].sum()) - sum(block.without_last().rank for block in basis.blocks)


def read_by_others(model: nn.Module, x: Tensor) -> set[int]:
    """Ids of the trainable parameters that something other than a Linear or Conv layer reads."""
    trace = Trace()
    try:
        with torch.enable_grad():
            output = traced_copy(model, trace)(x.clone())
    finally:
        trace.close()
    if not isinstance(output, Tensor):
        raise InputError(f"the model returns a {type(output).__name__}; wrap it so that it returns the logits alone")
    found = parameters_used_elsewhere(output.grad_fn, trace)
    layers = nn.Linear | nn.Conv1d | nn.Conv2d
    return found | {id(p) for use in trace.uses if not isinstance(use.layer, layers) for p in use.parameters.values()}


def _check_precision(name: str, p: Tensor) -> None:
    if p.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} is {p.dtype}, in which a shift cannot be kept orthogonal to the layer's inputs; "
            "convert the model with .float() first"
        )
