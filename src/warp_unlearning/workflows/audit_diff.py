"""What changed between two audits: their subjects, their settings, and every attack's area."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..stats.area import LEVEL, match, matched_area, standard_error
from ..stats.intervals import Estimate
from ..stats.tails import student_beyond
from .audit_results import Scores, read_audit, read_scores


@dataclass(frozen=True)
class Change:
    """An attack in both audits. `difference` is the second area less the first, example by example, where both audits
    keep scores of the same examples.
    """

    name: str
    first: Estimate
    second: Estimate
    difference: Estimate | None


@dataclass(frozen=True)
class AuditDiff:
    """Facts that differ, attacks in both audits, and attacks in one alone."""

    facts: Mapping[str, tuple[Any, Any]]
    changes: tuple[Change, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    paired: bool

    def as_json(self) -> dict[str, Any]:
        """Plain data with the version of its form."""
        return {"schema_version": 1, "kind": "audit diff", **asdict(self)}


def diff_audits(first: Path, second: Path) -> AuditDiff:
    """Compare the audits at two paths, folders or files."""
    one, other = read_audit(first), read_audit(second)
    rows = [{row["name"]: row for row in audit["rows"]} for audit in (one, other)]
    scores = read_scores(first), read_scores(second)
    paired = _same_examples(one, other, *scores)
    shared = [name for name in rows[0] if name in rows[1]]
    positives = int(one["counts"]["forgotten"])
    changes = tuple(
        Change(
            name,
            Estimate(**rows[0][name]["auc"]),
            Estimate(**rows[1][name]["auc"]),
            _difference(name, positives, *scores) if paired else None,
        )
        for name in shared
    )
    return AuditDiff(
        _facts(one, other),
        changes,
        tuple(name for name in rows[0] if name not in rows[1]),
        tuple(name for name in rows[1] if name not in rows[0]),
        paired,
    )


def _facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    flat = [
        {name: audit[name] for name in ("strongest", "strongest_strength")}
        | {name: audit["verdict"][name] for name in ("outcome", "reasons", "margin", "max_drop")}
        | {
            f"{group}.{key}": value
            for group in ("digests", "counts", "settings")
            for key, value in audit[group].items()
        }
        for audit in (one, other)
    ]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return {key: (flat[0].get(key), flat[1].get(key)) for key in keys if flat[0].get(key) != flat[1].get(key)}


def _same_examples(
    one: Mapping[str, Any], other: Mapping[str, Any], first: Scores | None, second: Scores | None
) -> bool:
    if first is None or second is None:
        return False
    digests = (one["digests"], other["digests"])
    alike = all(digests[0].get(f"{what} set") == digests[1].get(f"{what} set") for what in ("forget", "test"))
    return alike and all(np.array_equal(first[key], second[key]) for key in ("forget_index", "test_index"))


def _difference(name: str, positives: int, first: Scores | None, second: Scores | None) -> Estimate | None:
    if first is None or second is None or name not in first or name not in second:
        return None
    rows = match(np.arange(len(first["classes"])) < positives, first["classes"])
    found = matched_area(second[name], rows) - matched_area(first[name], rows)
    error, freedom = standard_error(found.influence, rows)
    reach = student_beyond((1 - LEVEL) / 2, freedom) * error
    return Estimate(found.value, max(found.value - reach, -1.0), min(found.value + reach, 1.0))
