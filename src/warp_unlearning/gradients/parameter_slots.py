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
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError
from ..modules import modules_by_path


def copy_with_same_parameters(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters with `model`, and nothing else that a forward pass could change."""
    try:
        return cast(nn.Module, _Copies(model).of(model))
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
_OF_TORCH = frozenset(vars(nn.Module()))


class _Copies:
    """`deepcopy` of the modules of a model, which takes several times as long, with its parameters left as they are."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._memo: dict[int, Any] = {}
        self._knows_parameters = False

    def of(self, module: Any) -> Any:
        """The copy of one module, with those of its children."""
        kind: Any = type(module)
        if id(module) in self._memo or not _is_plain(kind):
            return self._deep(module)
        copy = self._memo[id(module)] = kind.__new__(kind)
        # Faster than filling the dictionary that it has, and than assignment, which modules take into their own hands.
        state = vars(module).copy()
        object.__setattr__(copy, "__dict__", state)
        attributes = _attributes(tuple(state), tuple(map(type, state.values())))
        for key, its in attributes.of_torch:
            # Hooks for the most part, and most layers have none.
            state[key] = self._of_torch(module, key, state[key]) if state[key] else its()
        tuples = attributes.tuples
        # They are looked through at once.
        if tuples and not _are_atoms(chain.from_iterable(map(state.__getitem__, tuples))):
            state.update((key, self._deep(state[key])) for key in tuples)
        for key in attributes.others:
            state[key] = self._other(state[key])
        return copy

    def _of_torch(self, module: nn.Module, key: str, value: Any) -> Any:
        if key == "_modules":
            return {name: None if child is None else self.of(child) for name, child in value.items()}
        # The statistics of batch norms in eval mode are read alone.
        if key == "_parameters" or (key == "_buffers" and isinstance(module, _BatchNorm) and not module.training):
            return value.copy()
        return self._deep(value)

    def _other(self, value: Any) -> Any:
        kind: Any = type(value)
        if (kind is set or kind is list) and id(value) not in self._memo and _are_atoms(value):
            found = self._memo[id(value)] = kind(value)
            return found
        return self._deep(value)

    def _deep(self, value: Any) -> Any:
        if not self._knows_parameters:
            parameters = (p for module in modules_by_path(self._model).values() for p in module._parameters.values())
            self._memo.update((id(p), p) for p in parameters if p is not None)
            self._knows_parameters = True
        return deepcopy(value, self._memo)


def _are_atoms(values: Iterable[Any]) -> bool:
    return _ATOMS.issuperset(map(type, values))


class _Attributes(NamedTuple):
    """Those attributes of a module that are no atoms: what every module keeps, with its type, and the names of others.

    Nothing but the module itself refers to what torch keeps in it, so that copies may begin anew where it is empty.
    """

    of_torch: tuple[tuple[str, type], ...]
    tuples: tuple[str, ...]
    others: tuple[str, ...]


@lru_cache(maxsize=256)
def _attributes(names: tuple[str, ...], kinds: tuple[type, ...]) -> _Attributes:
    """From the names and types of all of them, which layers of one type seldom differ in."""
    of_torch: list[tuple[str, type]] = []
    tuples: list[str] = []
    others: list[str] = []
    for name, kind in zip(names, kinds, strict=True):
        if name in _OF_TORCH and kind in (dict, OrderedDict, set):
            of_torch.append((name, kind))
        elif kind not in _ATOMS:
            (tuples if kind is tuple else others).append(name)
    return _Attributes(tuple(of_torch), tuple(tuples), tuple(others))


@lru_cache(maxsize=128)
def _is_plain(kind: type) -> bool:
    """Whether it is a module about whose copying nothing is the class's own; what torch's layers have of it is for old
    versions' states.
    """
    own = (base for base in kind.__mro__ if base is not object and not base.__module__.startswith("torch.nn.modules."))
    return issubclass(kind, nn.Module) and not any(name in vars(base) for base in own for name in _CUSTOM)
