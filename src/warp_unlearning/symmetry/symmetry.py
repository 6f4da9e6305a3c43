"""What a symmetry is: a way to draw a move that keeps the network's function, from the network and what it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError
from .move import Move


class Sizes(NamedTuple):
    """How many examples a symmetry wants to look at; none where it needs the network alone."""

    retain: int = 0
    forget: int = 0


@dataclass(frozen=True, eq=False)
class Probe:
    """The data a symmetry may look at, on the device of the model.

    `retain` holds batches of inputs whose outputs are to stay; `forget` inputs and labels whose gradients a move may
    shrink; `reference` the weights, by `state_dict` key, that a move may lead away from: those an attacker holds.
    """

    retain: Sequence[Tensor]
    forget: tuple[Tensor, Tensor] | None = None
    reference: Mapping[str, Tensor] | None = None


class Symmetry(Protocol):
    """A family of function-preserving moves.

    Exact families need the network alone and ignore the probe; data-dependent ones raise an error without it.
    """

    @property
    def looks_at(self) -> Sizes:
        """How many examples a probe should hold."""

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        """A random member of the family for `model`, which is left as it is; apply it with `apply_move`."""


def require_symmetry(given: object) -> None:
    """Refuse what is no symmetry."""
    if isinstance(given, type) or not (hasattr(given, "looks_at") and callable(getattr(given, "move", None))):
        found = given.__name__ + ", a class" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InputError(f"the symmetry is {found}; give an object such as NullSpace() or ChangeOfBasis()")


def settings_of(settings: object) -> dict[str, Any]:
    """The options of a symmetry, or of what uses symmetries, as plain data; nothing that it drew."""
    public = getattr(settings, "__dict__", {})
    return {name: _plain(value) for name, value in public.items() if not name.startswith("_")}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if hasattr(value, "looks_at"):
        return {"name": type(value).__name__, "options": settings_of(value)}
    return value if value is None or isinstance(value, str | int | float | bool) else type(value).__name__
