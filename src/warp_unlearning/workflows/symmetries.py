"""Symmetries as a command line names them, and settings given beside them sorted by whom they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config import Config, parse_override
from ..errors import InputError, nearest
from ..symmetry.compose import Compose
from ..symmetry.registry import make_symmetry, symmetry_names, symmetry_options
from ..symmetry.symmetry import Symmetry


def split_settings(settings: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The settings that belong to the configuration, as they are, and the others as options of symmetries."""
    overrides: list[str] = []
    options: dict[str, Any] = {}
    for setting in settings:
        for key, value in parse_override(setting).items():
            if key in Config.model_fields:
                overrides.append(setting)
            elif isinstance(value, dict) and isinstance(options.get(key), dict):
                options[key] |= value
            else:
                options[key] = value
    return overrides, options


def choose_symmetry(names: Sequence[str], options: Mapping[str, Any]) -> Symmetry:
    """The named symmetries, one after another. An option goes to each that has it; {symmetry: {option: value}} to one,
    before all others.
    """
    known = {name: {option.name for option in symmetry_options(name)} for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in sorted(options, key=symmetry_names().__contains__):
        value = options[key]
        if key in given and isinstance(value, Mapping):
            given[key] |= value
            continue
        owners = [name for name in names if key in known[name]]
        if not owners:
            every = {option for theirs in known.values() for option in theirs}
            raise InputError(f"{' and '.join(names)}: there is no option {key!r}; {nearest(key, every)}")
        for name in owners:
            given[name][key] = value
    symmetries = [make_symmetry(name, **given[name]) for name in names]
    return symmetries[0] if len(symmetries) == 1 else Compose(*symmetries)
