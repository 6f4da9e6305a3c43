"""A file of recipes that a tuning wrote, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from ..errors import DataError, InputError
from ..runs.yaml_text import load_yaml
from .schema import Section


class TunedArm(Section):
    """The settings of one arm, in the form in which a shadow audit takes them."""

    method: str
    defense: str | None
    methods: list[str]
    method_options: dict[str, dict[str, Any]]
    defenses: list[str]
    defense_options: dict[str, dict[str, Any]]
    trial: int = Field(ge=0)
    objectives: dict[str, float]


class TunedRecipes(Section):
    """Recipes by arm, and where they come from."""

    schema_version: Literal[1]
    kind: Literal["recipes"]
    provenance: dict[str, Any]
    arms: list[TunedArm]

    def arm(self, method: str, defense: str | None) -> TunedArm:
        """The settings for a method, alone or with a defence."""
        for arm in self.arms:
            if (arm.method, arm.defense) == (method, defense):
                return arm
        known = ", ".join(a.method if a.defense is None else f"{a.method} + {a.defense}" for a in self.arms)
        wanted = method if defense is None else f"{method} + {defense}"
        raise InputError(f"there is no recipe for {wanted}; the file has {known or 'none'}: tune it, or leave it out")


def read_recipes(file: Path) -> TunedRecipes:
    """The recipes in `file`."""
    try:
        return TunedRecipes.model_validate(load_yaml(file.read_text()))
    except OSError as error:
        raise InputError(
            f"the recipes {file} cannot be read: {error.strerror}; give the recipes.yaml of a `warp tune`"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"the recipes {file} are not YAML ({' '.join(str(error).split())})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DataError(
            f"{file} holds no recipes of ours: {where}: {first['msg']}; give the recipes.yaml of a `warp tune`"
        ) from error
