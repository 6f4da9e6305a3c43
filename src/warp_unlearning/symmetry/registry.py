"""The symmetries by name, for configurations and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..errors import InputError, nearest
from .attention_basis import AttentionBasis
from .change_of_basis import ChangeOfBasis
from .null_space import NullSpace, TrackedNullSpace
from .options import Option, check_options, options_of
from .permutation import Permutation
from .symmetry import Symmetry

_SYMMETRIES: Mapping[str, type[Symmetry]] = {
    "null_space": NullSpace,
    "tracked_null_space": TrackedNullSpace,
    "change_of_basis": ChangeOfBasis,
    "permutation": Permutation,
    "attention_basis": AttentionBasis,
}

_ABOUT: Mapping[str, str] = {
    "energy": "share of the inputs of every layer that is protected",
    "k": "directions protected in every layer, in place of a share",
    "k_max": "most directions protected in a layer",
    "rule": "what the share is of: squared singular values (energy) or singular values",
    "batch_size": "retained examples a move looks at",
    "forget_size": "examples to forget that a move looks at",
    "steps": "steps of a move",
    "step_size": "length of a step, relative to the original's weights; 0.05 unless eta is given",
    "eta": "the paper's step size: a step is so many times the projected gradient",
    "dispersion": "pull away from the original, relative to the descent of the energy; 0.5 unless beta is given",
    "beta": "the paper's weight of the pull away from the original",
    "protect": "whose layer inputs are protected: those of retained examples, or also of those to forget",
    "aim": "where to: down the gradient energy, or at random",
    "batch_norm": "freeze batch-norm parameters, or project them, which does not keep the function",
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
