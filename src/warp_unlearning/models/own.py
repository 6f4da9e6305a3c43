"""Networks of the user's own: what they return, as logits."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from torch import Tensor, nn

from .model_checks import check_network
from .user_model import load_function as load_function

_PLAIN = ("torch", "warp_unlearning")


def as_network(model: nn.Module, *, what: str = "the model") -> nn.Module:
    """`model` checked; where it may return an object or a dict with `logits`, the same module, with its parameters,
    buffers, names and submodules, returning the logits.
    """
    check_network(model, what=what)
    if type(model).__module__.partition(".")[0] in _PLAIN or _logits_of in model._forward_hooks.values():
        return model
    # A shallow copy shares every tensor and submodule, and a hook on it is not one on the model that was given.
    network = copy(model)
    network._forward_hooks = network._forward_hooks.copy()
    network.register_forward_hook(_logits_of)
    return network


def unwrap(model: nn.Module) -> nn.Module:
    """The module as it was given to `as_network`."""
    for key in [key for key, hook in model._forward_hooks.items() if hook is _logits_of]:
        del model._forward_hooks[key]
    return model


def _logits_of(model: nn.Module, inputs: object, output: Any) -> Tensor | None:
    if isinstance(output, Mapping) and "logits" in output:
        found: Tensor = output["logits"]
        return found
    return getattr(output, "logits", None) if not isinstance(output, Tensor) else None
