"""The secret that the defences of a shadow audit draw from, kept in the private part of its run."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import NamedTuple

from ..data.files import write_atomically
from ..errors import DataError
from ..runs.directory import RunDirectory

FILE = "private/secret.json"


class AuditSecret(NamedTuple):
    """`seed` is what all defences of an audit draw from; `name` tells it from others and says nothing of it."""

    seed: int
    name: str | int


def audit_secret(run: RunDirectory, fixed: int | None, *, draw: bool = True) -> AuditSecret:
    """Return the secret of a run: 256 bits, drawn when the run is first started, or `fixed` for an experiment. Without
    `draw`, a run that has none yet gets one of no use.

    Whoever can draw a defence's moves again can undo them.
    """
    if fixed is not None:
        return AuditSecret(fixed, fixed)
    file = run.path / FILE
    if not file.is_file():
        if not draw:
            return AuditSecret(0, "")
        with run.lock():
            _draw_once(file)
    try:
        found = json.loads(file.read_text())
        return AuditSecret(int(found["secret"], 16), str(found["name"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); the audit cannot go on without it: begin a new run"
        ) from error


def _draw_once(file: Path) -> None:
    if not file.is_file():
        file.parent.mkdir(mode=0o700, exist_ok=True)
        drawn = {"name": secrets.token_hex(16), "secret": secrets.token_hex(32)}
        write_atomically(file, json.dumps(drawn).encode())
