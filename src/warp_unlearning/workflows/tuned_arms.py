"""The arms of a tuning from its configuration: what each starts from, and what is searched between which values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cli.unlearn import SMALL
from ..config import RangeConfig, TuneConfig
from ..defense.registry import defense_names, defense_options, make_defense
from ..errors import InputError, nearest
from ..methods.protocol import options
from ..methods.recipes import SMALL_DATA
from ..methods.registry import make_method, method_classes
from ..studies.shadow_settings import Arm
from ..studies.tuning_settings import DEFENSE, METHOD, TunedArm
from ..studies.tuning_space import Choice, Limits, Range, Space, Span, corners, defense_space, method_space
from ..unlearning.record import describe


def tuned_arms(config: TuneConfig, *, examples: int, retained: int) -> tuple[TunedArm, ...]:
    """Every method alone, then with each defence. `examples` are those of the training part, `retained` those that a
    shadow keeps. Settings that the configuration gives are held; the ends of all ranges are checked.
    """
    _check_names(config)
    limits = Limits(training_epochs=config.training.epochs, retained=retained)
    small = config.recipe == "small" or (config.recipe == "auto" and examples < SMALL)
    defenses = {name: _defense(config, name) for name in dict.fromkeys(config.defenses)}
    arms = []
    for method in dict.fromkeys(config.methods):
        given = config.method_options.get(method, {})
        ours = {name: o.default for name, o in _method_options(method).items()}
        space = _searched(method_space(method, limits, changed=_ranges(config, method, ours)), given)
        start = describe(make_method(method, **{**(SMALL_DATA.get(method, {}) if small else {}), **given}))["options"]
        for corner in corners(space):
            make_method(method, **{**start, **corner})
        searched = {f"{METHOD}.{name}": found for name, found in space.items()}
        arms.append(TunedArm(Arm(method, start), searched))
        for defense, (held, theirs) in defenses.items():
            both = {**searched, **{f"{DEFENSE}.{name}": found for name, found in theirs.items()}}
            arms.append(TunedArm(Arm(method, start, defense, held), both))
    _check_something_is_searched(arms)
    return tuple(arms)


def _defense(config: TuneConfig, name: str) -> tuple[dict[str, Any], dict[str, Range]]:
    """What a defence starts from, and what is searched of it."""
    about = defense_options(name)
    ours = {option.name: option.default for option in (*about.symmetry_options, *about.options)}
    given = config.defense_options.get(name, {})
    space = _searched(defense_space(name, changed=_ranges(config, name, ours)), given)
    for corner in corners(space):
        make_defense(name, **{**given, **corner})
    return {**{option: ours[option] for option in space}, **given}, space


def _searched(space: Space, given: Mapping[str, Any]) -> dict[str, Range]:
    return {name: found for name, found in space.items() if name not in given}


def _ranges(config: TuneConfig, owner: str, defaults: Mapping[str, Any]) -> dict[str, Range]:
    given = config.ranges.get(owner, {})
    return {name: _range(found, defaults.get(name)) for name, found in given.items()}


def _range(given: RangeConfig, default: Any) -> Range:
    if given.choices is not None:
        return Choice(tuple(given.choices))
    assert given.low is not None
    assert given.high is not None
    whole = isinstance(default, int) and not isinstance(default, bool)
    if whole and not (isinstance(given.low, int) and isinstance(given.high, int)):
        raise InputError(f"a range from {given.low} to {given.high} is for a whole number; give whole ends")
    return Span(given.low, given.high, log=given.log, whole=whole)


def _method_options(name: str) -> dict[str, Any]:
    if name not in method_classes():
        raise InputError(f"unknown method {name!r}; {nearest(name, method_classes())}")
    return {option.name: option for option in options(method_classes()[name])}


def _check_names(config: TuneConfig) -> None:
    for what, given, known in (
        ("method_options", config.method_options, config.methods),
        ("defense_options", config.defense_options, config.defenses),
        ("ranges", config.ranges, [*config.methods, *config.defenses]),
    ):
        for name in given:
            if name not in known:
                raise InputError(f"{what} has {name!r}, which is not among those tuned: {', '.join(known)}")
    for name in config.defenses:
        if name not in defense_names():
            raise InputError(f"unknown defence {name!r}; {nearest(name, defense_names())}")


def _check_something_is_searched(arms: list[TunedArm]) -> None:
    for arm in arms:
        if not arm.space:
            raise InputError(f"nothing of {arm.name} is left to search; hold fewer of its settings, or give ranges")
