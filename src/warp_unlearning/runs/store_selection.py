"""Entries of a store by the beginning of their digest, kind, age, or because a later version of their kind is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ..errors import InputError
from .store import Entry, Store


def find_digest(store: Store, beginning: str) -> str:
    """The one digest that begins so."""
    found = [digest for digest in store.digests() if digest.startswith(beginning.lower())]
    if not beginning or not found:
        raise InputError(
            f"no entry of {store.root} has a key that begins with {beginning!r}; `warp runs list` shows them"
        )
    if len(found) > 1:
        raise InputError(f"{len(found)} keys begin with {beginning!r}; give more of it: {', '.join(found[:3])}")
    return found[0]


def select(
    entries: Iterable[Entry],
    *,
    kind: str | None = None,
    before: datetime | None = None,
    superseded: bool = False,
) -> Sequence[Entry]:
    """Entries that meet every condition given: of this kind, made before, of an older version than another here."""
    everything = list(entries)
    newest: dict[str, int] = {}
    for entry in everything:
        key = entry.manifest.key
        newest[key.kind] = max(key.version, newest.get(key.kind, 0))
    return [
        entry
        for entry in everything
        if (kind is None or entry.manifest.key.kind == kind)
        and (before is None or entry.manifest.made < before)
        and (not superseded or entry.manifest.key.version < newest[entry.manifest.key.kind])
    ]


def days_before(now: datetime, days: float) -> datetime:
    """The moment so many days ago."""
    try:
        return now - timedelta(days=days)
    except OverflowError as error:
        raise InputError(f"{days:g} days ago is before the calendar begins; give fewer") from error
