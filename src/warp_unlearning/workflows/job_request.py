"""What every command that does jobs on a store is asked: a configuration, and where results and store are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..runs.store import Store

Config = TypeVar("Config")
STORE = "store"
"""The folder of the store beside the results."""


@dataclass(frozen=True)
class JobRequest(Generic[Config]):
    """A configuration and the folder for its results. The store is in that folder unless another is named, which
    several runs may share.
    """

    config: Config
    out: Path
    store: Path | None = None

    def open_store(self) -> Store:
        """The store, made where there is none."""
        return Store(self.store or self.out / STORE)
