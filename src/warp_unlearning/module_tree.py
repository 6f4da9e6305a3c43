"""The modules of a model, their tensors by name and their modes, without the generators of `nn.Module`.

What is asked several times between two updates of a small network takes longer there than the update.
"""

from __future__ import annotations

from torch import Tensor, nn


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
        if child is not None and id(child) not in seen:
            _add(child, start + name, found, seen)


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """What `named_parameters` gives: each once, by its first name."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for path, module in modules_by_path(model).items():
        for name, p in module._parameters.items():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                found[f"{path}.{name}" if path else name] = p
    return found


def buffers_by_name(model: nn.Module) -> dict[str, Tensor]:
    """What `named_buffers` gives: each once, by its first name."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, module in modules_by_path(model).items():
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                found[f"{path}.{name}" if path else name] = buffer
    return found


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
