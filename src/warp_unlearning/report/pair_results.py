"""The results of an audit of two checkpoints (kind "pair", schema versions 1 and 2) as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pydantic import ValidationError

from ..errors import DataError
from ..stats.reading import Verdict
from . import schema
from .fields import Field, Pairs
from .measures import Estimate, Rate, read_estimate, read_rate, read_verdict, reading

_VERDICTS: Mapping[str, Verdict] = {
    "holds": "no leak found",
    "does not hold": "leak",
    "cannot be said": "inconclusive",
}


@dataclass(frozen=True)
class AttackRow:
    """One attack; `retrained`, `beyond` and `null` are None where no retrained model was given."""

    name: str
    needs: str
    auc: Estimate
    adjusted_p: float | None
    verdict: Verdict
    rates: tuple[Rate, ...]
    retrained: Estimate | None
    beyond: Estimate | None
    null: Estimate | None


@dataclass(frozen=True)
class PairResults:
    """An audit of a pair of models, as its results file tells it."""

    kind: ClassVar[str] = "pair"
    date: str
    rows: tuple[AttackRow, ...]
    strongest: str
    strongest_strength: Estimate
    verdict: Verdict
    beyond_retrained: Verdict | None
    not_tried: Pairs
    counts: Pairs
    digests: Pairs
    settings: Pairs
    threat: tuple[str, ...]
    notes: tuple[str, ...]
    level: float
    margin: float

    def count(self, name: str) -> str:
        """How many examples of that kind there were, as text; empty where the file does not say."""
        return dict(self.counts).get(name, "")


def read_pair(field: Field) -> PairResults:
    """The results from the whole of a file."""
    rows = tuple(_row(row) for row in field["rows"])
    if not rows:
        field["rows"].wrong("at least one attack")
    return PairResults(
        field["date"].text() if "date" in field else "",
        rows,
        field["strongest"].text(),
        read_estimate(field["strongest_strength"]),
        read_verdict(field["verdict"]),
        field["beyond_retrained"].maybe(read_verdict),
        tuple((name, why.text()) for name, why in field["not_tried"].items()),
        tuple((name, f"{number.count():,}") for name, number in field["counts"].items()),
        field["digests"].scalars(),
        field["settings"].scalars(),
        field["threat"].texts(),
        field["notes"].texts(),
        field["level"].number(),
        field["margin"].number(),
    )


def _row(field: Field) -> AttackRow:
    return AttackRow(
        field["name"].text(),
        field["needs"].text(),
        read_estimate(field["auc"]),
        field["adjusted_p"].maybe_number(),
        read_verdict(field["verdict"]),
        tuple(read_rate(rate) for rate in field["rates"]),
        field["retrained"].maybe(read_estimate),
        field["beyond"].maybe(read_estimate),
        field["null"].maybe(read_estimate),
    )


def read_judged_pair(data: Mapping[str, Any], file: str) -> PairResults:
    """The results from the whole of a file of schema version 2."""
    try:
        found = schema.Pair.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}; make the audit again") from error
    if not found.rows:
        raise DataError(f"{file} compares no row, as no unseen row has a class of the forgotten ones; nothing to show")
    evidence = {e.attack: e for e in found.verdict.evidence}
    outcomes = {claim.name: _VERDICTS[claim.outcome] for claim in found.verdict.claims}

    def known(estimate: object) -> Estimate | None:
        return None if estimate is None else Estimate(**asdict(estimate))  # type: ignore[call-overload]

    rows = []
    for row in found.rows:
        area, own = Estimate(**asdict(row.auc)), evidence.get(row.name)
        rates = tuple(Rate(r.fpr, r.resolved, r.negatives, known(r.tpr)) for r in row.rates)
        retrained = known(row.retrained[0]) if row.retrained else None
        beyond = known(own.deviation) if own is not None and own.claim == "hidden" else None
        p = None if own is None else own.adjusted
        rows.append(
            AttackRow(row.name, row.needs, area, p, reading(area) or "inconclusive", rates, retrained, beyond, None)
        )
    return PairResults(
        found.date,
        tuple(rows),
        found.strongest,
        Estimate(**asdict(found.strongest_strength)),
        _VERDICTS[found.verdict.outcome],
        outcomes.get("hidden"),
        tuple(found.not_tried.items()),
        tuple((name, f"{number:,}") for name, number in found.counts.items()),
        tuple(found.digests.items()),
        tuple((name, str(value)) for name, value in found.settings.items()),
        found.threat,
        (*found.verdict.lines, *found.notes),
        found.verdict.level,
        found.verdict.margin,
    )
