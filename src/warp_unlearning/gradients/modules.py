"""The modules of a model and the paths to them."""

from __future__ import annotations

from torch import nn


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
