"""Running a module with other tensors in the places of its parameters.

`torch.func.functional_call` is not used: where one module is a child twice, it swaps the parameter twice and leaves the
replacement behind (torch 2.13).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError
from ..module_tree import modules_by_path


def copy_with_same_parameters(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters with `model`, and nothing else that a forward pass could change."""
    parameters = (p for module in modules_by_path(model).values() for p in module._parameters.values())
    shared: dict[int, Any] = {id(p): p for p in parameters if p is not None}
    try:
        return cast(nn.Module, _copied(model, shared))
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


_CUSTOM = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__")
_ATOMS = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, FunctionType})


def _copied(module: Any, memo: dict[int, Any]) -> Any:
    """`deepcopy(module, memo)`, which takes several times as long."""
    kind: Any = type(module)
    if id(module) in memo or not isinstance(module, nn.Module) or not _is_plain(kind):
        return deepcopy(module, memo)
    copy = memo[id(module)] = kind.__new__(kind)
    state = vars(copy)
    state.update(vars(module))
    # Most are atoms, and most of the rest are empty.
    for key, value in [item for item in state.items() if type(item[1]) not in _ATOMS]:
        kind = type(value)
        if kind is dict or kind is OrderedDict:
            if not value:
                state[key] = kind()
                continue
        elif kind is tuple and _are_atoms(value):
            continue
        if key == "_parameters":
            state[key] = kind(value)
        elif key == "_modules":
            state[key] = kind((name, _copied(child, memo)) for name, child in value.items())
        elif key == "_buffers" and isinstance(module, _BatchNorm) and not module.training:
            # They are read alone.
            state[key] = kind(value)
        elif (kind is set or kind is list) and id(value) not in memo and _are_atoms(value):
            state[key] = memo[id(value)] = kind(value)
        else:
            state[key] = deepcopy(value, memo)
    return copy


def _are_atoms(values: Iterable[Any]) -> bool:
    return _ATOMS.issuperset(map(type, values))


@lru_cache(maxsize=128)
def _is_plain(kind: type[nn.Module]) -> bool:
    """Whether nothing about copying is the class's own; what torch's layers have of it is for old versions' states."""
    own = (base for base in kind.__mro__ if base is not object and not base.__module__.startswith("torch.nn.modules."))
    return not any(name in vars(base) for base in own for name in _CUSTOM)
