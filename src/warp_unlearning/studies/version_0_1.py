"""Arms of version 0.1, read from its stored results by their keys and never made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, nearest
from .cell_settings import CellSettings, StudyArm
from .study import SIZES, Asked, Size, settings_of, study_arm

_METHODS = {"srf_on": "srf_on_strict (0.1)", "langevin": "langevin (0.1)"}
_DEFENSES = {
    "warp": "warp_guarded (0.1)",
    "published": "warp_published (0.1)",
    "fastwarp": "fastwarp_guarded (0.1)",
    "conjugate": "conjugate (0.1)",
    "kick": "kick (0.1)",
}
ABOUT = (
    "Arms named (0.1) were measured by version 0.1 of this program, with algorithms that it no longer has: the paper's "
    "numbers do not stand beside them. Its guarded WARP protects the inputs of forgotten examples too, refuses a "
    "teleport that lowers their loss by more than 2 %, halves one that breaks a bound before it is taken back, starts "
    "its pull away from the original by a random kick of 0.01 and ends it at half of the original's length. Its WARP "
    "as published is the same without that protection and refusal."
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "kick": {"aim": "random"},
    "published": {"protect": "retain", "relearning": None},
}


@dataclass(frozen=True)
class StoredArm(StudyArm):
    """An arm under the name of what it measured, with the key it has in the store."""

    @property
    def shown_method(self) -> str:
        """The method, under a name of its own where the algorithm is another now."""
        return _METHODS.get(self.method, self.method)

    @property
    def ingredients(self) -> dict[str, Any]:
        """What of the arm decided a result; no number of the algorithm."""
        found = super().ingredients
        found.pop("algorithm", None)
        return found


def stored_settings(size_name: str, asked: Asked) -> CellSettings:
    """Every method with each of its defences that are asked for, "none" and "warp" by default."""
    size, known = SIZES[size_name], ("none", *_DEFENSES)
    defenses = ("none", "warp") if asked.defenses is None else asked.defenses
    for name in defenses:
        if name not in known:
            raise InputError(f"version 0.1 had no arms with the defence {name!r}; {nearest(name, known)}")

    def arms() -> Iterator[StoredArm]:
        for method in asked.methods:
            for name in (name for name in known if name in defenses):
                defense = "warp" if name in VARIANTS else None if name == "none" else name
                arm = study_arm(asked, size, method, None if name == "none" else name)
                yield StoredArm(
                    method,
                    arm.method_settings,
                    defense,
                    {**_given(method, name, size), **arm.defense_settings},
                    called=_DEFENSES.get(name),
                    sets=arm.sets,
                )

    return settings_of(list(arms()), size, asked)


def _given(method: str, defense: str, size: Size) -> Mapping[str, Any]:
    """What a study of version 0.1 gave a defence unless it was asked otherwise."""
    if defense in ("none", "conjugate"):
        return {}
    often = {"every": size.every[method]} if method in size.every else {}
    return {**VARIANTS.get(defense, {}), **often, "certify": "brief"}
