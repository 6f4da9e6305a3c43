"""Running a module with other tensors in the places of its parameters.

`torch.func.functional_call` is not used: where one module is a child twice, it swaps the parameter twice and leaves the
replacement behind (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from ..errors import InputError


def copy_with_same_parameters(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters with `model` and nothing else."""
    shared: dict[int, Any] = {id(p): p for p in model.parameters()}
    try:
        return deepcopy(model, shared)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied: {error}; keep nothing in it that has a gradient history"
        ) from error


@contextmanager
def parameters_replaced(model: nn.Module, values: Mapping[int, Tensor]) -> Iterator[None]:
    """Let `model` compute with `values`, keyed by the id of the parameter they stand for, within the block."""
    places = [
        (module._parameters, name, p)
        for module in model.modules()
        for name, p in module._parameters.items()
        if p is not None and id(p) in values
    ]
    try:
        for slots, name, p in places:
            # Assignment by attribute would refuse tensors that are no nn.Parameter.
            slots[name] = values[id(p)]  # type: ignore[assignment]
        yield
    finally:
        for slots, name, p in places:
            slots[name] = p
