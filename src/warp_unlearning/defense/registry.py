"""Defences by name. The options of a defence and of its symmetry are given side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, nearest
from ..symmetry.base import Option, check_options, make_symmetry, options_of, settings_of, symmetry_options
from .base import Defense
from .conjugate import Conjugate
from .warp import Warp


@dataclass(frozen=True)
class _Recipe:
    """A kind of defence and of symmetry, with the defaults of this name over those of the kinds."""

    kind: type[Warp] | type[Conjugate]
    symmetry: str
    about: str
    own: Mapping[str, Any] = field(default_factory=dict)
    of_symmetry: Mapping[str, Any] = field(default_factory=dict)


_DEFENSES: Mapping[str, _Recipe] = {
    "warp": _Recipe(
        Warp,
        "null_space",
        "The paper's WARP: null-space teleports between the updates, their bases decomposed each time.",
    ),
    "fastwarp": _Recipe(Warp, "tracked_null_space", "The paper's FastWARP: the same with bases that follow the model."),
    "warp_guarded": _Recipe(
        Warp,
        "null_space",
        "Ours: WARP that also keeps the inputs of what is forgotten, and takes back teleports that relearn it.",
        {"relearning": 0.02},
        {"protect": "both", "energy": 0.9998, "step_size": 0.01},
    ),
    "cob": _Recipe(Warp, "change_of_basis", "One change of basis after the last update.", {"every": "end"}),
    "conjugate": _Recipe(
        Conjugate,
        "change_of_basis",
        "Updates taken in a changed basis, and a move back at the end.",
        of_symmetry=settings_of(Conjugate().symmetry),
    ),
}

_ABOUT: Mapping[str, str] = {
    "every": "when to teleport: after each epoch, once at the end, after so many updates, or null",
    "gradient_threshold": "teleport also after an update where the mean forget gradient is longer",
    "tolerance": "rise of the loss of unseen retained examples beyond which a teleport is taken back",
    "relearning": "fall of the loss of examples to forget, as a share, beyond which one is taken back; null for none",
    "momentum": "carry the optimizer's momentum across a teleport, or reset it",
    "match": "length of an update: that of the plain one (length), or the same effect on the loss (effect)",
}


@dataclass(frozen=True)
class DefenseOptions:
    """A sentence on a defence, its options, its symmetry and the options of that."""

    about: str
    options: tuple[Option, ...]
    symmetry: str
    symmetry_options: tuple[Option, ...]


def defense_names() -> tuple[str, ...]:
    """The names `unlearn(defense=...)` takes."""
    return tuple(_DEFENSES)


def defense_options(name: str) -> DefenseOptions:
    """What `make_defense` takes for this name."""
    recipe = _recipe(name)
    return DefenseOptions(
        recipe.about,
        options_of(recipe.kind, _ABOUT, defaults=recipe.own),
        recipe.symmetry,
        symmetry_options(recipe.symmetry, defaults=recipe.of_symmetry),
    )


def make_defense(name: str, /, **options: Any) -> Defense:
    """The defence `name` with its options and those of its symmetry; unknown ones are errors that name the nearest.

    `symmetry` is the name of another symmetry, or options for the symmetry alone: {"steps": 2}, and "name" for another.

    >>> make_defense("warp", energy=0.95, every=10).symmetry.energy
    0.95
    """
    recipe = _recipe(name)
    symmetry, theirs = _symmetry_given(name, options.pop("symmetry", {}), recipe)
    own = {option.name for option in options_of(recipe.kind, _ABOUT)}
    known = {option.name for option in symmetry_options(symmetry)}
    mine = {key: value for key, value in options.items() if key in own}
    for key, value in options.items():
        if key not in own | known:
            raise InputError(f"{name} has no option {key!r}; {nearest(key, {*own, *known, 'symmetry'})}")
        if key not in own and key in theirs:
            raise InputError(f"{name}: {key} is given twice, as {value!r} and as symmetry.{key}; leave one out")
    theirs |= {key: value for key, value in options.items() if key not in own}
    check_options(name, recipe.kind, mine)
    defaults = dict(recipe.of_symmetry) if symmetry == recipe.symmetry else {}
    if "eta" in theirs:  # An absolute length replaces the recipe's relative one.
        defaults.pop("step_size", None)
    made = recipe.kind(make_symmetry(symmetry, **{**defaults, **theirs}), **{**recipe.own, **mine})
    if isinstance(made, Warp):
        object.__setattr__(made, "_name", name)
    return made


def as_defense(given: object) -> Defense | None:
    """A defence from its name; objects and None stay as they are."""
    if given is None:
        return None
    if isinstance(given, str):
        return make_defense(given)
    if not isinstance(given, Defense) or isinstance(given, type):
        raise InputError(
            f"the defence is a {type(given).__name__}; give a name ({', '.join(defense_names())}), an object of "
            "warp_unlearning.defense, or None"
        )
    return given


def _recipe(name: str) -> _Recipe:
    if name not in _DEFENSES:
        raise InputError(f"unknown defence {name!r}; {nearest(name, _DEFENSES)}")
    return _DEFENSES[name]


def _symmetry_given(name: str, given: Any, recipe: _Recipe) -> tuple[str, dict[str, Any]]:
    if isinstance(given, str):
        return given, {}
    if not isinstance(given, Mapping):
        raise InputError(f"{name}: symmetry is {given!r}; give the name of one, or its options as {{option: value}}")
    theirs = dict(given)
    return str(theirs.pop("name", recipe.symmetry)), theirs
