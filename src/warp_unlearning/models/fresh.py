"""A network as if newly built."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import nn

from ..errors import InputError
from .reinitialise import reinitialise


def fresh(
    model: nn.Module, *, generator: torch.Generator, untrained: nn.Module | Callable[[], nn.Module] | None = None
) -> nn.Module:
    """A copy of `model` with the weights of `untrained`, a network or what builds one; drawn anew without it.

    A builder draws from torch's global generator, seeded from `generator` for the while.
    """
    copy = deepcopy(model)
    if untrained is None:
        reinitialise(copy, generator=generator)
        return copy
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        built = untrained if isinstance(untrained, nn.Module) else untrained()
    if not isinstance(built, nn.Module):
        raise InputError(f"untrained built a {type(built).__name__}; make it return an nn.Module")
    try:
        copy.load_state_dict(built.state_dict())
    except RuntimeError as error:
        raise InputError(
            f"the untrained {type(built).__name__} has other weights than the {type(model).__name__} to unlearn: "
            f"{' '.join(str(error).split())[:200]}; give a new network of the same architecture"
        ) from error
    return copy
