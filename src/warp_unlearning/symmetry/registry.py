"""The symmetries by name, for configurations and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..errors import InputError, nearest
from .attention_basis import AttentionBasis
from .change_of_basis import ChangeOfBasis
from .null_space import NullSpace
from .options import Option, check_options, options_of
from .permutation import Permutation
from .symmetry import Symmetry
from .tracked_null_space import TrackedNullSpace

_SYMMETRIES: Mapping[str, type[Symmetry]] = {
    "null_space": NullSpace,
    "tracked_null_space": TrackedNullSpace,
    "change_of_basis": ChangeOfBasis,
    "permutation": Permutation,
    "attention_basis": AttentionBasis,
}

_ABOUT: Mapping[str, str] = {
    "energy": "share of the inputs of every layer that is protected",
    "rule": "what the share is of: squared singular values (energy) or singular values",
    "batch_size": "retained examples a move looks at",
    "forget_size": "examples to forget that a move looks at",
    "step_size": "length of a step, relative to the length of the original's weights",
    "steps": "steps of a move",
    "dispersion": "pull away from the original's weights; at 1 as strong as the descent on gradient energy",
    "kick": "length of the random kick that gives this pull a direction, relative to the original's weights",
    "radius": "distance from the original's weights that the pull does not exceed, relative to them",
    "protect": "whose layer inputs are protected: those of retained examples, or also of those to forget",
    "aim": "where to: down the gradient energy, or at random",
    "batch_norm": "freeze batch-norm parameters, or project them, which does not keep the function",
    "halvings": "how often a step that does not descend is halved",
    "rounds": "rounds of subspace iteration that follow the inputs from one move to the next",
    "spread": "width of the law of the scales",
    "law": "law of the scales: uniform on 1 ± spread, or log-normal or normal of that deviation",
    "through_norm": "rescale also between a layer and its batch norm, running statistics included",
    "heads": "move the bases of attention heads",
    "norms": "rescale between layer norms and the layers that read them",
    "units": "reorder the hidden units of MLPs",
}


def symmetry_names() -> tuple[str, ...]:
    """The names `make_symmetry` takes."""
    return tuple(_SYMMETRIES)


def symmetry_options(name: str, *, defaults: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    """The options of the symmetry `name`, with `defaults` over its own."""
    return options_of(_class(name), _ABOUT, defaults=defaults)


def make_symmetry(name: str, /, **options: Any) -> Symmetry:
    """The symmetry `name` with its options; unknown names and options are errors that name the nearest.

    >>> make_symmetry("change_of_basis", spread=0.5).spread
    0.5
    """
    cls = _class(name)
    known = [option.name for option in symmetry_options(name)]
    for key in options:
        if key not in known:
            raise InputError(f"{name} has no option {key!r}; {nearest(key, known)}")
    check_options(name, cls, options)
    return cast(Any, cls)(**options)  # type: ignore[no-any-return]


def _class(name: str) -> type[Symmetry]:
    if name not in _SYMMETRIES:
        raise InputError(f"unknown symmetry {name!r}; {nearest(name, _SYMMETRIES)}")
    return _SYMMETRIES[name]
