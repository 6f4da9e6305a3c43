"""The contract of a symmetry, which draws moves that keep a network's function; `Compose`, which joins several; and
symmetries and their options by name, for the registry of defences and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Protocol, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from ..errors import InputError, nearest
from .moves import ComposedMove, Move, apply_move

# Imported when first named, as each of them imports this file.
_SYMMETRIES: Mapping[str, str] = {
    "null_space": "null_space.NullSpace",
    "tracked_null_space": "null_space.TrackedNullSpace",
    "change_of_basis": "rescaling.ChangeOfBasis",
    "permutation": "permutation.Permutation",
    "attention_basis": "attention.AttentionBasis",
}
_KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "null"}


class Sizes(NamedTuple):
    """How many examples a symmetry looks at; none where it needs the network alone."""

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
        """Draw a random move for `model`, which is left as it is; make the move with `apply_move`."""


class Compose:
    """Several symmetries as one: T = Tₙ ∘ … ∘ T₁, each drawn for the network as the ones before have moved it."""

    def __init__(self, *symmetries: Symmetry) -> None:
        if not symmetries:
            raise InputError("Compose() was given no symmetry; name at least one, such as Compose(Permutation())")
        for symmetry in symmetries if len(symmetries) > 1 else ():
            if getattr(symmetry, "follows_one_network", False):
                raise InputError(
                    f"Compose() was given a {type(symmetry).__name__}, whose bases cannot follow the others; "
                    "use NullSpace"
                )
        self.symmetries = symmetries

    @property
    def looks_at(self) -> Sizes:
        wanted = [symmetry.looks_at for symmetry in self.symmetries]
        return Sizes(max(w.retain for w in wanted), max(w.forget for w in wanted))

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ComposedMove:
        """Draw a move of each symmetry in turn; `model` is left as it is.

        The probe's reference is moved along, so that a later symmetry sees the same distance from it.
        """
        moves: list[Move] = []
        moved = deepcopy(model) if len(self.symmetries) > 1 else model
        for symmetry in self.symmetries:
            if moves:
                apply_move(moved, moves[-1])
                if probe is not None and probe.reference is not None:
                    reference = {name: moves[-1].point(name, value) for name, value in probe.reference.items()}
                    probe = replace(probe, reference=reference)
            moves.append(symmetry.move(moved, generator=generator, probe=probe))
        return ComposedMove(tuple(moves))


def require_symmetry(given: object) -> None:
    """Refuse what is no symmetry."""
    if isinstance(given, type) or not (hasattr(given, "looks_at") and callable(getattr(given, "move", None))):
        found = given.__name__ + ", a class" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InputError(f"the symmetry is {found}; give an object such as NullSpace() or ChangeOfBasis()")


def symmetry_names() -> tuple[str, ...]:
    """The names `make_symmetry` takes."""
    return tuple(_SYMMETRIES)


def make_symmetry(name: str, /, **options: Any) -> Symmetry:
    """The symmetry `name` with its options; unknown names and options are errors that name the nearest.

    >>> make_symmetry("change_of_basis", spread=0.5).spread
    0.5
    """
    known = [option.name for option in symmetry_options(name)]
    for key in options:
        if key not in known:
            raise InputError(f"{name} has no option {key!r}; {nearest(key, known)}")
    check_options(name, _class(name), options)
    return cast(Symmetry, _class(name)(**options))


@dataclass(frozen=True)
class Option:
    """A setting: its name, its type in words, its default, and a sentence on what it does."""

    name: str
    type: str
    default: object
    help: str


def option(default: Any, help_text: str) -> Any:
    """Declare a setting as a field of a dataclass, with the sentence that the command line prints for it."""
    return field(default=default, metadata={"help": help_text})


def symmetry_options(name: str, *, defaults: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    """The options of the symmetry `name`, with `defaults` over its own."""
    return options_of(_class(name), defaults=defaults)


def options_of(cls: type, *, defaults: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    """The keyword-only fields of a dataclass in the order they are declared, with `defaults` over its own."""
    hints, given = get_type_hints(cls), defaults or {}
    return tuple(
        Option(f.name, _described(hints[f.name]), given.get(f.name, f.default), f.metadata.get("help", ""))
        for f in (fields(cls) if is_dataclass(cls) else ())
        if f.kw_only and f.init
    )


def check_options(owner: str, cls: type, given: Mapping[str, Any]) -> None:
    """Raise where a value is not of the type that the class declares for the option; `owner` names it in the error.

    Values may come from a command line or a file, so types are checked before a constructor compares them.
    """
    hints = get_type_hints(cls)
    for name, value in given.items():
        if not _fits(value, hints[name]):
            raise InputError(f"{owner}: {name} is {value!r}; it must be {_described(hints[name])}")


def settings_of(settings: object) -> dict[str, Any]:
    """The options of a symmetry, or of what uses symmetries, as plain data; nothing that it drew."""
    public = getattr(settings, "__dict__", {})
    return {name: _plain(value) for name, value in public.items() if not name.startswith("_")}


def _plain(value: Any) -> Any:
    """A setting as data that JSON can hold; of any other object the name of its class."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if hasattr(value, "looks_at"):
        return {"name": type(value).__name__, "options": settings_of(value)}
    return value if value is None or isinstance(value, str | int | float | bool) else type(value).__name__


def _class(name: str) -> type:
    """The class of the symmetry `name`, or an error that names the nearest."""
    if name not in _SYMMETRIES:
        raise InputError(f"unknown symmetry {name!r}; {nearest(name, _SYMMETRIES)}")
    module, _, cls = _SYMMETRIES[name].partition(".")
    return cast(type, getattr(import_module(f".{module}", __package__), cls))


def _fits(value: Any, hint: Any) -> bool:
    """Whether the value is of the annotated type. A whole number is a float too, True and False are no numbers."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _described(hint: Any) -> str:
    """What a type allows, in words: "'epoch', 'end', a whole number or null"."""
    words: list[str] = []
    for member in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        words += map(repr, get_args(member)) if get_origin(member) is Literal else [_KINDS.get(member, str(member))]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
