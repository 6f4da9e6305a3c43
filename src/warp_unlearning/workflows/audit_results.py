"""Results of `warp audit pair` read again, and the scores behind them."""

from __future__ import annotations

import io
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..errors import DataError, InputError
from ..report.schema import Pair

Scores = dict[str, NDArray[np.float64]]


def read_audit(path: Path) -> dict[str, Any]:
    """The results at `path`, a folder or a file, as plain data."""
    file = path / "results.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"there is no audit {file}; give the --out of `warp audit pair`, or its results.json")
    try:
        return Pair.model_validate_json(file.read_bytes()).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"{file} holds no audit of a pair: {where}: {first['msg']}; make the audit again") from error


def read_scores(folder: Path) -> Scores | None:
    """The scores beside an audit, or None where there are none."""
    file = folder / "scores.npz"
    if not folder.is_dir() or not file.is_file():
        return None
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, TokenError, BadZipFile) as error:
        raise DataError(f"{file} cannot be read ({type(error).__name__}); make the audit again") from error
