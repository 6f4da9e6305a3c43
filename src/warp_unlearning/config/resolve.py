"""A configuration from defaults, a YAML file and overrides, in that order, with errors that name the nearest key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ..errors import InputError, nearest
from ..runs.yaml_text import RepeatedKey, load_yaml
from ..training.recipe import RECIPES
from .schema import Config

Schema = TypeVar("Schema", bound=BaseModel)
RESOLVED = "resolved"
"""The section of a run's config.yaml that says what the run found when it started. It sets nothing."""


def resolve(
    *, base: Mapping[str, Any] | None = None, file: Path | None = None, overrides: Sequence[str] = ()
) -> Config:
    """The configuration of `file` over `base`, then each override "key.sub=value" (the value as YAML) over that."""
    return resolve_as(Config, base=base, file=file, overrides=overrides)


def resolve_as(
    schema: type[Schema],
    *,
    base: Mapping[str, Any] | None = None,
    file: Path | None = None,
    overrides: Sequence[str] = (),
) -> Schema:
    """The same for another schema."""
    data: dict[str, Any] = _merged(dict(base or {}), _read(file) if file else {})
    for override in overrides:
        data = _merged(data, parse_override(override))
    try:
        return schema.model_validate(_with_recipe(data))
    except ValidationError as error:
        raise InputError(_first_problem(error, schema)) from error


def _with_recipe(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of the named training recipe under those that are given."""
    training = data.get("training")
    name = training.get("recipe") if isinstance(training, dict) else None
    if not isinstance(training, dict) or name not in RECIPES:
        return data
    return {**data, "training": {**asdict(RECIPES[name]), **training}}


def as_plain(config: BaseModel) -> dict[str, Any]:
    """The configuration as plain data, to be written beside results."""
    return config.model_dump(mode="json")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = load_yaml(path.read_text())
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read: {error.strerror}; give a YAML file") from error
    except RepeatedKey as error:
        raise InputError(f"the configuration {path} has {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"the configuration {path} is not YAML ({reason}); write sections of key: value") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"the configuration {path} holds a {type(data).__name__}; it must be sections of key: value")
    return {key: value for key, value in data.items() if key != RESOLVED}


def parse_override(override: str) -> dict[str, Any]:
    """The nested data that "key.sub=value" stands for, the value read as YAML.

    >>> parse_override("training.lr=1e-3")
    {'training': {'lr': 0.001}}
    """
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise InputError(f"the override {override!r} is not of the form key.sub=value, such as training.lr=0.1")
    try:
        value: Any = load_yaml(text)
    except RepeatedKey as error:
        raise InputError(f"the override {override!r} has {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"the value of the override {override!r} is not YAML; put it in quotes") from error
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, Mapping)
        merged[key] = _merged(below, value) if both and isinstance(below, dict) else value
    return merged


def _first_problem(error: ValidationError, schema: type[BaseModel]) -> str:
    problem = error.errors()[0]
    where = [str(part) for part in problem["loc"]]
    name = ".".join(where)
    if problem["type"] == "extra_forbidden":
        section = ".".join(where[:-1]) or "the configuration"
        return f"{section} has no key {where[-1]!r}; {nearest(where[-1], _keys(schema, where[:-1]))}"
    return f"{name or 'the configuration'} is {problem.get('input')!r}: {problem['msg']}"


def _keys(schema: type[BaseModel], path: Sequence[str]) -> list[str]:
    model = schema
    for part in path:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
    return list(model.model_fields)
