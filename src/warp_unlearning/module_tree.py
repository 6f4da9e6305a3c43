"""The modules of a model, their tensors by name and their modes, without the generators of `nn.Module`.

What is asked several times between two updates of a small network takes longer there than the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, cast

from torch import Tensor, nn

Held = TypeVar("Held")


def modules_by_path(model: nn.Module) -> dict[str, nn.Module]:
    """What `named_modules` gives, which takes several times as long."""
    found: dict[str, nn.Module] = {}
    _add(model, "", found, set())
    return found


def _add(module: nn.Module, path: str, found: dict[str, nn.Module], seen: set[int]) -> None:
    seen.add(id(module))
    found[path] = module
    start = f"{path}." if path else ""
    for name, child in module._modules.items():
        if child is None or id(child) in seen:
            continue
        if child._modules:
            _add(child, start + name, found, seen)
        else:
            # Most modules have no children, and a call takes as long as the rest.
            seen.add(id(child))
            found[start + name] = child


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """What `named_parameters` gives: each once, by its first name."""
    return dict(_once_each((path, module._parameters) for path, module in modules_by_path(model).items()))


def buffers_by_name(model: nn.Module) -> dict[str, Tensor]:
    """What `named_buffers` gives: each once, by its first name."""
    return dict(_once_each((path, module._buffers) for path, module in modules_by_path(model).items()))


def _once_each(held: Iterable[tuple[str, Mapping[str, Held | None]]]) -> Iterator[tuple[str, Held]]:
    """What modules at these paths hold, by path and name."""
    seen: set[int] = set()
    for path, tensors in held:
        for name, tensor in tensors.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """The module's attribute of this name, a parameter or a buffer; by `getattr` it takes several times as long."""
    # What something other than torch has put there comes first.
    if name not in module.__dict__:
        held = module._parameters
        if name in held:
            return held[name]
        others = module._buffers
        if name in others:
            return others[name]
    return cast("Tensor | None", getattr(module, name))


def modes_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Every module, and whether it is in train mode."""
    return [(module, module.training) for module in modules_by_path(model).values()]


def set_mode(model: nn.Module, *, training: bool) -> None:
    """Put the whole model in that mode, where some module of it is not."""
    if any(mode != training for _, mode in modes_of(model)):
        model.train(training)


def restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    """Put each module back in the mode it had."""
    for module, training in modes:
        if module.training != training:
            module.training = training
