"""The file of a user's own network, which decides results as much as any setting."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from ..errors import InputError


def network_file_digest(spec: str | None) -> str | None:
    """SHA-256 of the file in FILE.py:build; None where no file is given."""
    if spec is None:
        return None
    file = Path(spec.rpartition(":")[0])
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"the network file {file} cannot be read: {error.strerror}") from error
