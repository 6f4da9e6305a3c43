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
    """What a name in the registry stands for: the defence's class (`kind`), the name of its symmetry, a sentence for
    the command line (`about`), and the options of both that differ from their own defaults.
    """

    kind: type[Warp] | type[Conjugate]
    symmetry: str
    about: str
    defense_defaults: Mapping[str, Any] = field(default_factory=dict)
    symmetry_defaults: Mapping[str, Any] = field(default_factory=dict)


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
        symmetry_defaults=settings_of(Conjugate().symmetry),
    ),
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
        options_of(recipe.kind, defaults=recipe.defense_defaults),
        recipe.symmetry,
        symmetry_options(recipe.symmetry, defaults=recipe.symmetry_defaults),
    )


def make_defense(name: str, /, **options: Any) -> Defense:
    """The defence `name` with its options and those of its symmetry; unknown ones are errors that name the nearest.

    `symmetry` is the name of another symmetry, or options for the symmetry alone: {"steps": 2}, and "name" for another.

    >>> make_defense("warp", energy=0.95, every=10).symmetry.energy
    0.95
    """
    recipe = _recipe(name)
    symmetry, symmetry_settings = _symmetry_given(name, options.pop("symmetry", {}), recipe)
    defense_names = {option.name for option in options_of(recipe.kind)}
    symmetry_names = {option.name for option in symmetry_options(symmetry)}
    defense_settings = {key: value for key, value in options.items() if key in defense_names}
    for key, value in options.items():
        if key not in defense_names | symmetry_names:
            nearest_name = nearest(key, {*defense_names, *symmetry_names, "symmetry"})
            raise InputError(f"{name} has no option {key!r}; {nearest_name}")
        if key not in defense_names and key in symmetry_settings:
            raise InputError(f"{name}: {key} is given twice, as {value!r} and as symmetry.{key}; leave one out")
    symmetry_settings |= {key: value for key, value in options.items() if key not in defense_names}
    check_options(name, recipe.kind, defense_settings)
    defaults = dict(recipe.symmetry_defaults) if symmetry == recipe.symmetry else {}
    if "eta" in symmetry_settings:  # An absolute length replaces the recipe's relative one.
        defaults.pop("step_size", None)
    moves = make_symmetry(symmetry, **{**defaults, **symmetry_settings})
    defense = recipe.kind(moves, **{**recipe.defense_defaults, **defense_settings})
    if isinstance(defense, Warp):
        object.__setattr__(defense, "_name", name)
    return defense


def as_defense(given: object) -> Defense | None:
    """Make a defence from its name; return an object that is one, or None, as it is."""
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
    """The entry of the registry, or an error that names the nearest."""
    if name not in _DEFENSES:
        raise InputError(f"unknown defence {name!r}; {nearest(name, _DEFENSES)}")
    return _DEFENSES[name]


def _symmetry_given(name: str, given: Any, recipe: _Recipe) -> tuple[str, dict[str, Any]]:
    """The name of the symmetry and its options, from the value of the option `symmetry`."""
    if isinstance(given, str):
        return given, {}
    if not isinstance(given, Mapping):
        raise InputError(f"{name}: symmetry is {given!r}; give the name of one, or its options as {{option: value}}")
    settings = dict(given)
    return str(settings.pop("name", recipe.symmetry)), settings
