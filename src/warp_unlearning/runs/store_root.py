"""The folder of a store: how it is told from any other, and how it is made."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..data.files import sync_folder
from .store_errors import StoreError, explain
from .store_file import write_synced

SCHEMA_VERSION = 1
ABOUT = "store.json"
_WHAT = "warp-unlearning store of results"
_FOLDERS = ("entries", "temp", "claims", "aside")


def open_root(root: Path, *, create: bool) -> None:
    """Check that `root` is a store that this program reads; make it one where it is missing or empty and may be."""
    try:
        if not (root / ABOUT).is_file():
            _make(root, create=create)
    except OSError as error:
        raise explain(error, f"make a store of results at {root}") from error
    about = read_about(root)
    if about.get("what") != _WHAT:
        raise StoreError(f"{root / ABOUT} is not that of a store of results; give another folder")
    if about.get("schema_version") != SCHEMA_VERSION:
        raise StoreError(
            f"the store {root} has schema version {about.get('schema_version')!r} and {SCHEMA_VERSION} is read here; "
            "use the version of this package that wrote it, or give another folder"
        )
    # Copies and archives leave out empty folders. Where none can be made the store may still be read.
    with suppress(OSError):
        _make_folders(root)


def read_about(root: Path) -> dict[str, Any]:
    """What a store says of itself."""
    try:
        about = json.loads((root / ABOUT).read_bytes())
    except OSError as error:
        raise explain(error, f"read {root / ABOUT}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{root / ABOUT} is no JSON: {error}; the folder is no store, or is damaged") from error
    return about if isinstance(about, dict) else {}


def _make(root: Path, *, create: bool) -> None:
    if root.exists() and not root.is_dir():
        raise StoreError(f"{root} is a file, no store of results; give a folder")
    if not create:
        raise StoreError(f"{root} is no store of results: it has no {ABOUT}; give the folder of one")
    # A process killed while it made a store leaves folders of the store, and the file it was writing.
    if root.exists() and not all(p.name in _FOLDERS or p.name.startswith(f".{ABOUT}") for p in root.iterdir()):
        if (root / ABOUT).is_file():
            return
        raise StoreError(f"{root} has files in it and is no store of results; give an empty or a new folder")
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make_folders(root)
    about = {"what": _WHAT, "schema_version": SCHEMA_VERSION, "identity": uuid4().hex}
    draft = root / f".{ABOUT}-{uuid4().hex}"
    write_synced(root, {draft.name: (json.dumps(about, indent=1) + "\n").encode()})
    try:
        # A link and not a rename: of two processes that make the store at once, the first one's identity stays.
        with suppress(FileExistsError):
            os.link(draft, root / ABOUT)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(root)


def _make_folders(root: Path) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(exist_ok=True, mode=0o700)
