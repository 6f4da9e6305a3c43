"""The results of an audit of two checkpoints (kind "pair", schema version 1) as plain dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..stats.reading import Verdict
from .fields import Field, Pairs
from .measures import Estimate, Rate, read_estimate, read_rate, read_verdict


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
