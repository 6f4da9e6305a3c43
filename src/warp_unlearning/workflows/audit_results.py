"""Results of audits as files: `audit.json` in a run directory, or such a file by itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..attacks.membership.pair_report import SCHEMA_VERSION, PairAudit
from ..data.files import write_atomically
from ..errors import DataError, InputError

AUDIT = "audit.json"
SCORES = "scores.npz"
Scores = dict[str, NDArray[np.float64]]


def read_audit(path: Path) -> dict[str, Any]:
    """The results at `path`, a folder or a file."""
    file = path / AUDIT if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"there is no audit {file}; give the --out of `warp audit pair`, or its {AUDIT}")
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); make the audit again") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{file} has schema version {version}; this program reads {SCHEMA_VERSION}: make the audit again, or use "
            "the version of this package that wrote it"
        )
    if data.get("kind") != "pair" or not isinstance(data.get("rows"), list) or not data["rows"]:
        raise DataError(f"{file} holds no audit of a pair of models (kind {data.get('kind')!r}); make the audit again")
    _check_fields(data, file)
    return dict(data)


_NUMBERS = ("value", "low", "high")
_GROUPS = ("counts", "digests", "settings", "strongest_strength")


def _check_fields(data: dict[str, Any], file: Path) -> None:
    """Refuse results that lack what is read from them."""
    wrong = [name for name in _GROUPS if not isinstance(data.get(name), dict)]
    wrong += [name for name in ("verdict", "strongest") if not isinstance(data.get(name), str)]
    wrong += [] if isinstance(data.get("level"), float) else ["level"]
    for i, row in enumerate(data["rows"]):
        whole = (
            isinstance(row, dict) and {"name", "auc", "rates", "beyond"} <= set(row) and isinstance(row["rates"], list)
        )
        if not whole or not _is_estimate(row["auc"]) or not (row["beyond"] is None or _is_estimate(row["beyond"])):
            wrong.append(f"rows[{i}]")
    if wrong or not _is_estimate(data["strongest_strength"]):
        what = (wrong or ["strongest_strength"])[0]
        raise DataError(f"{file} is damaged: {what} is missing or not of its kind; make the audit again")


def _is_estimate(data: object) -> bool:
    return isinstance(data, dict) and all(isinstance(data.get(name), int | float) for name in _NUMBERS)


def write_scores(path: Path, audit: PairAudit) -> None:
    """The scores behind an audit, by the names of its rows, and the positions of forgotten and test examples."""
    arrays: dict[str, NDArray[Any]] = {str(attack): scores for attack, scores in audit.scores.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, forget_index=audit.forget_index, test_index=audit.test_index, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read_scores(folder: Path) -> Scores | None:
    """The scores beside an audit, or None where there are none."""
    file = folder / SCORES
    if not folder.is_dir() or not file.is_file():
        return None
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, TokenError, BadZipFile) as error:
        raise DataError(f"{file} cannot be read ({type(error).__name__}); make the audit again") from error
