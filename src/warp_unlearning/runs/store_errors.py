"""What can go wrong with a store of results."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..errors import WarpError


class StoreError(WarpError):
    """A store that cannot be used: not ours, of another version, full, read-only."""


class MissingEntry(StoreError):
    """There is no entry for a key. `digest` is the key's."""

    def __init__(self, message: str, *, digest: str) -> None:
        super().__init__(message)
        self.digest = digest

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments would be lost on the way back from a worker process.
        return partial(type(self), digest=self.digest), self.args


class CorruptEntry(MissingEntry):
    """An entry was not what its checksums say. It has been set aside, so its job can be done again."""


def explain(error: OSError, doing: str) -> StoreError:
    """One sentence for an error of the operating system while `doing` something with a path."""
    from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS

    way_out = {
        ENOSPC: "the disk is full: free some of it (`warp runs gc`) and start again; what is finished is kept",
        EDQUOT: "the disk quota is used up: free some of it (`warp runs gc`) and start again; what is finished is kept",
        EROFS: "the disk is read-only: give a store on another",
        EACCES: "this account may not write there: give another folder, or change its owner",
        EPERM: "this account may not write there: give another folder, or change its owner",
    }.get(error.errno or 0, "check the disk, or give another folder")
    return StoreError(f"cannot {doing}: {error.strerror or error}; {way_out}")
