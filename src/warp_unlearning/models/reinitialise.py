"""Fresh random weights in place, for any module, drawn from one generator.

The draws are made on the CPU whatever device the model is on, so a seed gives the same weights everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import InputError


def reinitialise(model: nn.Module, *, generator: torch.Generator) -> None:
    """Give every parameter and running statistic of `model` the value a newly built one could have.

    Calls `reset_parameters` of every submodule that has one, children before parents, so that a model's own
    initialisation has the last word. A parameter that nothing resets is an error, and `model` is then left
    as it was. `requires_grad`, `training` and torch's global random state never change.

    >>> layer = nn.Linear(3, 2)
    >>> reinitialise(layer, generator=torch.Generator().manual_seed(0))
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    fresh = _blank_copy(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # torch.manual_seed would also seed the accelerators, whose state is not forked here.
        torch.default_generator.manual_seed(seed)
        # Modules are listed parents first, so reversed every child comes before its parent.
        for module in reversed(list(fresh.modules())):
            reset = _reset_of(module)
            if reset is not None:
                reset()
        _check_all_reset(fresh)
        _copy(fresh, model)


def _blank_copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU whose parameters are NaN, so that one which nobody resets is found out."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(f"{name} has no known shape yet; run one batch through the model first")
    try:
        copy = deepcopy(model).cpu()
    except RuntimeError as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied: {error}; use `torch.nn.utils.parametrizations`, "
            "or keep no tensors in it that have a gradient history"
        ) from error
    with torch.no_grad():
        for parameter in copy.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.fill_(torch.nan)
    return copy


def _reset_of(module: nn.Module) -> Callable[[], object] | None:
    # nn.MultiheadAttention and nn.Transformer keep theirs private.
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, name, None)
        if callable(reset):
            return cast(Callable[[], object], reset)
    return None


def _check_all_reset(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.isnan().any():
            owner = model.get_submodule(name.rpartition(".")[0])
            raise InputError(
                f"nothing says how the parameter {name} of a {type(owner).__name__} starts; "
                f"define `reset_parameters` in {type(owner).__name__}, or in a module around it, to set it"
            )


def _copy(source: nn.Module, target: nn.Module) -> None:
    values = dict(chain(source.named_parameters(), source.named_buffers()))
    for name, tensor in chain(target.named_parameters(), target.named_buffers()):
        tensor.copy_(values[name])
