"""Whether something is a network whose weights can be read and changed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import InputError


def check_network(model: object, *, what: str = "the model") -> None:
    """Refuse what is no plain module, and parameters that hold no numbers."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{what} is a {type(model).__name__}; give an nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(f"{what} is a compiled {type(model).__name__}; give the module that it was made from")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"{name} of {what} has no shape yet: a lazy layer takes it from the first batch; call the network once "
                "on an example when it is built"
            )
        if parameter.is_meta:
            raise InputError(f"{name} of {what} is on the device meta and holds no numbers; load its weights first")
