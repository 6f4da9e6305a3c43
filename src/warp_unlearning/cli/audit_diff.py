"""`warp audit diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .audit_check import RunWithVerdict
from .estimate import estimate
from .options import Json
from .show import finish, print_table

if TYPE_CHECKING:
    from ..report.read import Judged, Results


def diff(
    first: RunWithVerdict,
    second: Annotated[Path, typer.Argument(metavar="OTHER", help="The audit to compare with it.")],
    as_json: Json = False,
) -> None:
    """Show what changed between two audits; areas example by example where both are over the same examples."""
    from dataclasses import asdict

    from ..report.read import judged, read

    files = [read(path) for path in (first, second)]
    audits = [judged(file) for file in files]
    areas = [_areas(file, own) for file, own in zip(files, audits, strict=True)]
    facts = [_facts(file, own) for file, own in zip(files, audits, strict=True)]
    scores = _same_examples(first, second)
    shared = [name for name in areas[0] if name in areas[1]]
    changes = [
        {"name": name, "first": areas[0][name], "second": areas[1][name], "difference": None}
        | ({"difference": asdict(_difference(name, *scores))} if scores and name in scores[0] else {})
        for name in shared
    ]
    keys = [key for key in dict.fromkeys([*facts[0], *facts[1]]) if facts[0].get(key) != facts[1].get(key)]
    changed = {key: (facts[0].get(key), facts[1].get(key)) for key in keys}
    only = [[name for name in one if name not in other] for one, other in (areas, areas[::-1])]
    results = {
        "schema_version": 1,
        "kind": "audit diff",
        "facts": changed,
        "changes": changes,
        "only_first": only[0],
        "only_second": only[1],
        "paired": bool(scores),
    }
    lines = [
        f"only in the {name}: {', '.join(rows)}" for name, rows in zip(("first", "second"), only, strict=True) if rows
    ]
    if not scores:
        lines.append("the audits are not over the same examples, or keep no scores: differences have no interval")
    if not as_json:
        for key, (before, after) in changed.items():
            typer.echo(f"{key}: {_short(before)} -> {_short(after)}")
        cells = [
            [change["name"], *(estimate(change[k]) for k in ("first", "second", "difference"))] for change in changes
        ]
        print_table("AUC of every attack in both", ["attack", "first", "second", "second - first"], cells)
    finish(lines, results=results if as_json else None)


def _areas(file: Results, audits: Sequence[Judged]) -> dict[str, Any]:
    """The area of each attack on a pair of models, or of each arm of an audit by shadow models."""
    from dataclasses import asdict

    arms, rows = getattr(file, "arms", ()), getattr(file, "rows", ())
    found = {arm.name: arm.all.auc for arm in arms if arm.all is not None} | {row.name: row.auc for row in rows}
    if not arms and not rows:
        found = {e.attack: e.area for audit in audits if audit.verdict is not None for e in audit.verdict.evidence}
    return {name: asdict(area) for name, area in found.items()}


def _facts(file: Results, audits: Sequence[Judged]) -> dict[str, Any]:
    verdicts = [(f"{audit.name} " if audit.name else "", audit.verdict) for audit in audits]
    found = {f"{name}verdict": None if v is None else f"{v.outcome}: {', '.join(v.reasons)}" for name, v in verdicts}
    plain = file.model_dump(mode="json", include={"digests", "counts", "settings", "audited"}, exclude_unset=True)
    return found | {f"{group}.{key}": value for group, pairs in plain.items() for key, value in pairs.items()}


def _same_examples(first: Path, second: Path) -> list[Mapping[str, Any]]:
    """The scores of both audits, where both keep them for the same examples."""
    import numpy as np

    if not all((path / "scores.npz").is_file() for path in (first, second)):
        return []
    found: list[Mapping[str, Any]] = []
    for path in (first, second):
        with np.load(path / "scores.npz", allow_pickle=False) as file:
            found.append(dict(file))
    same = all(np.array_equal(found[0][key], found[1][key]) for key in ("forget_index", "test_index"))
    return found if same else []


def _difference(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Any:
    import numpy as np

    from ..stats.area import area_difference, match, matched_area

    forgotten = len(first["forget_index"])
    labels = first.get("classes", np.zeros(len(first[name])))
    rows = match(np.arange(len(labels)) < forgotten, labels)
    return area_difference(matched_area(second[name], rows), matched_area(first[name], rows), rows)


def _short(value: object) -> str:
    """Digests by their beginning."""
    text = str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text
