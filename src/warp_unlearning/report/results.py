"""From a results file to the results in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from ..errors import DataError, InputError
from .fields import Field
from .pair_results import PairResults, read_judged_pair, read_pair
from .reconstruction_results import ReconstructionResults, read_reconstruction
from .shadow_results import ShadowResults, read_shadow

SCHEMA_VERSION = 1
NAMES = ("results.json", "audit.json", "reconstruction.json")
Results = ShadowResults | PairResults | ReconstructionResults
_READERS: Mapping[str, Callable[[Field], Results]] = {
    "shadow": read_shadow,
    "pair": read_pair,
    "reconstruction": read_reconstruction,
}


def results_file(path: Path) -> Path:
    """The file itself, or the results in a folder that an audit wrote."""
    found = next((path / name for name in NAMES if (path / name).is_file()), path) if path.is_dir() else path
    if not found.is_file():
        raise InputError(
            f"there is no results file {found}; give the results.json or audit.json of an audit, the "
            "reconstruction.json of a reconstruction, or the folder it is in"
        )
    return found


def read_results(path: Path) -> Results:
    """The results at `path`, a file or a folder, with every field checked."""
    file = results_file(path)
    try:
        data = json.loads(file.read_bytes().decode(), parse_constant=_not_json)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file} is cut short or damaged: line {error.lineno}, column {error.colno}: {error.msg}; make the audit "
            "again, or copy the file again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON ({error}); make the audit again") from error
    whole = Field(data, str(file))
    if isinstance(data, dict) and data.get("kind") == "study":
        raise InputError(
            f"{file} holds the study {data.get('study', '(no name)')}, which is written already: see its table.md and "
            f"its figures in {file.parent}; `warp report` is for an audit or a reconstruction"
        )
    version = whole["schema_version"].value
    if version == 2 and isinstance(data, dict) and data.get("kind") == "pair":
        return read_judged_pair(data, str(file))
    if type(version) is not int or version != SCHEMA_VERSION:
        raise DataError(
            f"{file} has schema version {version!r}; this program reads {SCHEMA_VERSION}: make the audit again, or use "
            "the version of this package that wrote it"
        )
    return _READERS[whole["kind"].one_of(*_READERS)](whole)


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")
