"""Fresh random weights for any module, drawn from one generator.

The draws are made on the CPU whatever device the model is on, so a seed gives the same weights everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import InputError
from .own import built


def fresh(
    model: nn.Module, *, generator: torch.Generator, untrained: nn.Module | Callable[[], nn.Module] | None = None
) -> nn.Module:
    """A copy of `model` that has learned nothing: its weights are those of `untrained`, a network of the same names and
    shapes or a function that builds one, or drawn by the `reset_parameters` of its own layers.

    A function is called while torch's global generator is seeded from `generator`; other global generators are its own.
    """
    copy = _copy_of(model)
    if untrained is None:
        reinitialise(copy, generator=generator)
        return copy
    found = untrained
    if not isinstance(found, nn.Module):
        with _seeded(generator):
            found = built("`untrained`", found)
    try:
        copy.load_state_dict(found.state_dict())
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise InputError(f"the untrained network is unlike the model: {why} Build it as the model was built") from error
    ours = model.state_dict()
    if all(torch.equal(tensor, ours[name]) for name, tensor in copy.state_dict().items()):
        raise InputError("the untrained network has the weights of the model itself; give one that was not trained")
    return copy


def kept_buffers(model: nn.Module) -> list[str]:
    """Buffers of numbers that no `reset_parameters` sets, so that `reinitialise` leaves in them what was learned."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return [name for name, buffer in _reset_copy(model, "buffers").named_buffers() if buffer.isnan().any()]


def _reset_copy(model: nn.Module, what: Literal["parameters", "buffers"]) -> nn.Module:
    """A copy on the CPU, reset by its own code; those parameters or buffers that it leaves unset are NaN."""
    blank = _copy_of(model).cpu()
    for tensor in blank.parameters() if what == "parameters" else blank.buffers():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(torch.nan)
    # Modules are listed parents first, so reversed every child comes before its parent.
    for module in reversed(list(blank.modules())):
        # nn.MultiheadAttention and nn.Transformer keep theirs private.
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
    return blank


def reinitialise(model: nn.Module, *, generator: torch.Generator) -> None:
    """Give every parameter and running statistic of `model` the value a newly built one could have.

    Calls `reset_parameters` of every submodule that has one, children before parents, so that a model's own
    initialisation has the last word. A parameter that nothing resets is an error, and `model` is then left
    as it was. `requires_grad`, `training` and torch's global random state never change.

    >>> layer = nn.Linear(3, 2)
    >>> reinitialise(layer, generator=torch.Generator().manual_seed(0))
    """
    with _seeded(generator), torch.no_grad():
        blank = _reset_copy(model, "parameters")
        for name, parameter in blank.named_parameters():
            if parameter.isnan().any():
                owner = type(blank.get_submodule(name.rpartition(".")[0])).__name__
                way = f"give `untrained`, or define `reset_parameters` in {owner}, or in a module around it, to set it"
                raise InputError(f"nothing says how the parameter {name} of a {owner} starts; {way}")
        values = dict(chain(blank.named_parameters(), blank.named_buffers()))
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            tensor.copy_(values[name])


@contextmanager
def _seeded(generator: torch.Generator) -> Iterator[None]:
    """Torch's global generator of the CPU starts from a draw of `generator`, and is put back at the end."""
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the accelerators, whose state is not forked here.
        torch.default_generator.manual_seed(seed)
        yield


def _copy_of(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(f"{name} has no known shape yet; run one batch through the model first")
    try:
        return deepcopy(model)
    except RuntimeError as error:
        way = "use `torch.nn.utils.parametrizations`, or keep no tensors with a gradient history in it"
        raise InputError(f"{type(model).__name__} cannot be copied: {error}; {way}") from error
