"""The deletion record: each request to forget, the model it started from, how it was carried out, and the verdict.

Data appear as digests only: the record holds no example and no name that a person gave a row. Of a defence it holds
the name and the settings, never its random draws.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import torch

from ..data.examples import Examples, TensorExamples
from ..data.files import array_digest, to_json
from ..defense.base import Defense
from ..errors import DataError
from ..methods.base import Method
from ..symmetry.base import settings_of
from ..version import __version__

SCHEMA_VERSION = 2
WAYS = ("examples", "numbers", "mask", "names", "ids", "class", "fraction")
# Ways, numbers and hexadecimal digests: nothing that could name a person.
_REQUEST: dict[str, Any] = {"how": str, "rows": int, "copies": int, "drawn": bool, "digests": (list, tuple)}
_KINDS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "Mapping[str, Any]": Mapping}  # by annotation


@dataclass(frozen=True)
class Deletion:
    """One request to forget and how it was carried out.

    `request` has "how" the rows were given (one of `WAYS`), the number of "rows" and of "copies" left out with them,
    whether they were "drawn" at random, and "digests" of their contents. `preprocessing` turns raw inputs into the
    network's, `network_file` is the SHA-256 of a file that builds it, `recipe` names whose training made a retrained
    model. Version 0.1 knew none of these.
    """

    requested: int
    retained: int
    forget_digest: str
    retain_digest: str
    original: str
    unlearned: str
    method: Mapping[str, Any]
    defense: Mapping[str, Any] | None
    experiment_only: bool
    seed: int
    seconds: float
    date: str
    versions: Mapping[str, str]
    verdicts: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None
    network_file: str | None = None
    threads: int | None = None
    device: str | None = None
    verdict: Mapping[str, Any] | None = None
    recipe: str | None = None

    def __post_init__(self) -> None:
        for key, value in self.request.items():
            if key not in _REQUEST or not isinstance(value, _REQUEST[key]):
                raise DataError(f"a request with {key} = {value!r} cannot be recorded; it may have {list(_REQUEST)}")
        how, digests = self.request.get("how", WAYS[0]), self.request.get("digests", ())
        if how not in WAYS or not all(isinstance(d, str) and set(d) <= set("0123456789abcdef") for d in digests):
            raise DataError(f"a request by {how!r} cannot be recorded; give one of {WAYS}, and digests as hex")


@dataclass(frozen=True)
class DeletionRecord:
    """Deletions in the order they were carried out, each starting from the model the last one left."""

    deletions: tuple[Deletion, ...] = ()

    def then(self, deletion: Deletion) -> DeletionRecord:
        """The record with one more deletion, which must start from the last result."""
        if self.deletions and self.deletions[-1].unlearned != deletion.original:
            raise DataError(
                f"this deletion starts from the model {deletion.original[:12]}, but the record ends with "
                f"{self.deletions[-1].unlearned[:12]}; start from the last result, or begin a new record"
            )
        return DeletionRecord((*self.deletions, deletion))

    def audited(self, unlearned: str, verdict: Mapping[str, Any]) -> DeletionRecord:
        """The record with the verdict of one more audit of the last result, whose digest is `unlearned`."""
        ends = self.deletions[-1].unlearned if self.deletions else "nothing"
        if ends != unlearned:
            raise DataError(
                f"the audited model is {unlearned[:12]}, but the record ends with {ends[:12]}; audit the last result"
            )
        last = self.deletions[-1]
        audits = [*last.verdicts.get("audits", []), dict(verdict)]
        return DeletionRecord((*self.deletions[:-1], replace(last, verdicts={**last.verdicts, "audits": audits})))

    def as_json(self) -> dict[str, Any]:
        """Plain data with its schema version."""
        return {"schema_version": SCHEMA_VERSION, "deletions": [to_json(asdict(d)) for d in self.deletions]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeletionRecord:
        """The record that `as_json` wrote, in this version or in 0.1."""
        version = data.get("schema_version") if isinstance(data, Mapping) else None
        if version not in (1, SCHEMA_VERSION) or isinstance(version, bool):
            raise DataError(
                f"the deletion record has schema version {version}; this program reads versions 1 and {SCHEMA_VERSION}"
            )
        rows = data.get("deletions")
        if not isinstance(rows, list):
            raise DataError(f"the deletion record holds {rows!r} where its deletions should be; it is damaged")
        record = cls()
        for row in rows:
            record = record.then(_deletion(row, version=version))
        return record


def _deletion(row: object, *, version: int) -> Deletion:
    kinds = {f.name: _KINDS.get(str(f.type), object) for f in fields(Deletion)}
    names = list(kinds)
    names = names[: names.index("request")] if version == 1 else names
    if not isinstance(row, Mapping) or set(row) != set(names):
        odd = sorted(set(row) ^ set(names)) if isinstance(row, Mapping) else [repr(row)]
        raise DataError(f"a deletion of the record has missing or unknown fields: {', '.join(odd)}")
    for name in names:
        value, kind = row[name], kinds[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise DataError(f"a deletion of the record has {name} = {value!r}; it is damaged")
    return Deletion(**row)


def examples_digest(examples: Examples) -> str:
    """A digest of inputs and labels; of the labels alone, marked "labels:", for a `Dataset`, whose inputs may change
    with each reading.
    """
    labels = examples.y.cpu().numpy()
    if isinstance(examples, TensorExamples):
        x = examples.x.detach().cpu()
        return array_digest((x.float() if x.dtype == torch.bfloat16 else x).numpy(), labels)
    return "labels:" + array_digest(labels)


def describe(method: Method) -> dict[str, Any]:
    """A method's name and settings as plain data."""
    settings: dict[str, Any] = asdict(cast(Any, method)) if is_dataclass(method) else {}
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items() if not callable(v)}
    return {"name": method.name, "options": options}


def describe_defense(defense: Defense | None) -> dict[str, Any] | None:
    """A defence's name and settings as plain data, without its draws; settings are known of dataclasses only."""
    if defense is None:
        return None
    return {"name": defense.name, "options": settings_of(defense) if is_dataclass(defense) else {}}


def versions() -> dict[str, str]:
    """The versions that decide a result."""
    ours = {"warp_unlearning": __version__, "torch": str(torch.__version__), "numpy": np.__version__}
    return {**ours, "python": platform.python_version()}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
