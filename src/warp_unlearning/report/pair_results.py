"""The results of an audit of two checkpoints (kind "pair", schema versions 1 and 2) as plain dataclasses.

The verdict of version 1 was another one; the judge's is made of the ends of intervals that it holds. It does not say
what an attack sees in the original, nor whether the model still works, so that nothing can hold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import ClassVar

from pydantic import ValidationError

from ..errors import DataError
from ..stats import intervals
from ..stats.evidence import beyond_half, from_half
from ..stats.intervals import normal_beyond
from ..stats.verdict import MARGIN, Evidence, Needs, Verdict, judge
from . import schema
from .fields import Field, Pairs
from .measures import Estimate, Rate, read_estimate, read_rate


@dataclass(frozen=True)
class AttackRow:
    """One attack; `retrained`, `beyond` and `null` are None where no retrained model was given."""

    name: str
    needs: str
    auc: Estimate
    adjusted_p: float | None
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
    if field["schema_version"].value == 2:
        return _judged_pair(field)
    rows = tuple(_row(row) for row in field["rows"])
    if not rows:
        field["rows"].wrong("at least one attack")
    return PairResults(
        field["date"].text() if "date" in field else "",
        rows,
        field["strongest"].text(),
        read_estimate(field["strongest_strength"]),
        _judged(rows, field["counts"]),
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
        tuple(read_rate(rate) for rate in field["rates"]),
        field["retrained"].maybe(read_estimate),
        field["beyond"].maybe(read_estimate),
        field["null"].maybe(read_estimate),
    )


def _judged(rows: tuple[AttackRow, ...], counts: Field) -> Verdict:
    beside = [row for row in rows if row.beyond is not None]
    found = [_evidence(row, len(beside)) for row in rows]
    forgotten, unseen = (counts[name].count() for name in ("forgotten", "never seen"))
    evidence = [e for e in found if e is not None]
    return judge(evidence, rows=forgotten, unseen=unseen, null="unseen", references=bool(beside))


def _evidence(row: AttackRow, attacks: int) -> Evidence | None:
    """An attack on the new model beside unseen rows, or one on both models beside the retrained model, if any."""
    area, rates = row.auc.known, tuple(rate.known for rate in row.rates)
    on_weights, p = "weights" in row.needs, 1.0 if row.adjusted_p is None else row.adjusted_p
    if area is None:
        return None
    if "both" not in row.needs:
        needs: Needs = "new weights" if on_weights else "new outputs"
        unknown = intervals.Estimate(0.0, -0.5, 0.5)
        error = (area.high - area.low) / 2 / normal_beyond(0.025)
        return Evidence(row.name, needs, area, None, (), beyond_half(area), error, p, p, unknown, rates)
    beyond, reference = (None if found is None else found.known for found in (row.beyond, row.retrained))
    if beyond is None or reference is None:
        return None
    needs = "both weights" if on_weights else "both outputs"
    error = max((beyond.high - beyond.low) / 2 / normal_beyond(0.025 / attacks), 1e-12)
    p = NormalDist().cdf((2 * MARGIN - beyond.value) / error)
    more = intervals.Estimate(beyond.value, 0.0, beyond.high)
    test = (more, error, p, min(attacks * p, 1.0), from_half(reference), rates)
    return Evidence(row.name, needs, area, None, (reference,), *test)


def _judged_pair(field: Field) -> PairResults:
    try:
        found = schema.Pair.model_validate(field.value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{field.file}: {where}: {first['msg']}; make the audit again") from error
    if not found.rows:
        raise DataError(f"{field.file} compares no row, as no unseen row has a class of the forgotten ones")
    evidence = {e.attack: e for e in found.verdict.evidence}

    def known(estimate: intervals.Estimate | None) -> Estimate | None:
        return None if estimate is None else Estimate(**asdict(estimate))

    rows = []
    for row in found.rows:
        own = evidence.get(row.name)
        rates = tuple(Rate(r.fpr, r.resolved, r.negatives, known(r.tpr)) for r in row.rates)
        retrained = known(row.retrained[0]) if row.retrained else None
        beyond = known(own.deviation) if own is not None and own.claim == "hidden" else None
        p = None if own is None else own.adjusted
        rows.append(AttackRow(row.name, row.needs, Estimate(**asdict(row.auc)), p, rates, retrained, beyond, None))
    return PairResults(
        found.date,
        tuple(rows),
        found.strongest,
        Estimate(**asdict(found.strongest_strength)),
        found.verdict,
        tuple(found.not_tried.items()),
        tuple((name, f"{number:,}") for name, number in found.counts.items()),
        tuple(found.digests.items()),
        tuple((name, str(value)) for name, value in found.settings.items()),
        found.threat,
        found.notes,
        found.verdict.level,
        found.verdict.margin,
    )
