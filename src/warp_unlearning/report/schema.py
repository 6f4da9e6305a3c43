"""What `results.json` of each command holds, field by field.

The models refuse unknown fields and cannot be changed, so a file that is read is a file that was written. A bound that
is infinite is null, as JSON has no infinity. Names of rows are never among the fields: they would outlive the deletion.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from ..stats import intervals, verdict
from ..stats.verdict import Needs, Null, Outcome

SCHEMA_VERSION: Literal[2] = 2

Count = Annotated[int, Field(ge=0)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class Record(BaseModel):
    """A part of a results file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Results(Record):
    """A whole results file; the first line says which form it has, and `kind` of what."""

    schema_version: Literal[2] = SCHEMA_VERSION


class Estimate(Record):
    """A value and the ends of its interval."""

    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


class Evidence(Record):
    """One attack, as `stats.verdict.Evidence` describes it; `error` is null for one row."""

    attack: str
    needs: Needs
    area: Estimate
    original: Estimate | None
    retrained: tuple[Estimate, ...]
    deviation: Estimate
    error: FiniteFloat | None
    p: Share
    adjusted: Share
    seen: Estimate


class Claim(Record):
    """One claim of a verdict: outcome, reason, and the sentence that is printed."""

    name: str
    outcome: Outcome
    reason: str
    sentence: str
    rows_needed: Count | None = None
    strongest: str | None = None


class Verdict(Record):
    """A verdict, with the outcome, exit code, reasons and last line that follow from its claims."""

    outcome: Outcome
    exit: Literal[0, 1, 3]
    reasons: tuple[str, ...]
    sentence: str
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]
    null: Null
    assumes: tuple[str, ...]
    rows: Count
    unseen: Count
    margin: FiniteFloat
    level: FiniteFloat
    max_drop: FiniteFloat

    @model_validator(mode="after")
    def _follows_from_its_claims(self) -> Self:
        judged = self.judged() if self.claims else None
        if judged is None or (self.outcome, self.exit, self.reasons, self.sentence) != (
            judged.outcome,
            judged.exit,
            judged.reasons,
            judged.sentence,
        ):
            raise ValueError(f"the outcome {self.outcome!r} is not that of the claims; the file was changed by hand")
        return self

    @classmethod
    def of(cls, judged: verdict.Verdict) -> Verdict:
        """The form of a verdict in a results file."""
        return cls.model_validate(judged.as_json())

    def judged(self) -> verdict.Verdict:
        """The verdict itself, with everything it can say."""
        return verdict.Verdict(
            claims=tuple(verdict.Claim(**vars(claim)) for claim in self.claims),
            evidence=tuple(_evidence(e) for e in self.evidence),
            null=self.null,
            assumes=self.assumes,
            rows=self.rows,
            unseen=self.unseen,
            margin=self.margin,
            level=self.level,
            max_drop=self.max_drop,
        )


def _estimate(e: Estimate) -> intervals.Estimate:
    return intervals.Estimate(e.value, e.low, e.high)


def _evidence(e: Evidence) -> verdict.Evidence:
    return verdict.Evidence(
        attack=e.attack,
        needs=e.needs,
        area=_estimate(e.area),
        original=None if e.original is None else _estimate(e.original),
        retrained=tuple(_estimate(r) for r in e.retrained),
        deviation=_estimate(e.deviation),
        error=float("inf") if e.error is None else e.error,
        p=e.p,
        adjusted=e.adjusted,
        seen=_estimate(e.seen),
    )


class Request(Record):
    """The rows to forget: `how` they were asked for ("delete_ids.csv (column id)"), how many were asked for and found,
    how many exact copies of them went too, the first of them by number, and a digest of their contents.
    """

    how: str
    asked: Count
    found: Count
    copies: Count
    first: tuple[Count, ...]
    digest: str


class Named(Record):
    """A method or a defence with its settings, and whose they are ("published", "yours")."""

    name: str
    options: dict[str, Any]
    settings: str


class Accuracy(Record):
    """Accuracy of one model on each part; null where there are no such rows. `unseen` are test rows of the forgotten
    classes, each class weighted by its forgotten rows; `kept` test rows of classes that are still retained; `earlier`
    rows that requests before this one forgot, which a later one may bring back.
    """

    forgotten: Share
    unseen: Share | None
    retained: Share
    test: Share | None
    kept: Share | None = None
    earlier: Share | None = None


class Teleports(Record):
    """The teleports of a defended run: how many were made and taken back, the largest change of the retain loss by one,
    and the forget gradient energy of the original and of the result. With a defence's draws from a seed it is an
    experiment only: whoever knows the seed can undo them.
    """

    made: Count
    taken_back: Count
    largest_drift: FiniteFloat | None
    energy_before: FiniteFloat | None
    energy_after: FiniteFloat | None
    experiment_only: bool


class Unlearning(Results):
    """What `warp unlearn` did and how it was judged. Digests are of weights and, in `request`, of rows."""

    kind: Literal["unlearn"] = "unlearn"
    request: Request
    retained: Count
    method: Named
    defense: Named | None
    before: Accuracy
    after: Accuracy
    teleports: Teleports | None
    verdict: Verdict
    seed: int
    updates: Count
    seconds: FiniteFloat
    cpu_seconds: FiniteFloat
    original: str
    unlearned: str
    requests: Count
    notes: tuple[str, ...] = ()


class Check(Results):
    """What `warp check` found: the model fits these data, read as `reading`. `known` and `test` are accuracies on so
    many rows, `readings` the accuracy on the known rows by other ways to read them, `movable` the share of the weights
    that the chosen defence can move, `notes` what could not be told.
    """

    kind: Literal["check"] = "check"
    outcome: Literal["holds"] = "holds"
    reading: str
    classes: Count
    known: Estimate
    known_rows: Count
    test: Estimate | None
    test_rows: Count
    readings: dict[str, Share]
    movable: Share | None
    digest: str
    notes: tuple[str, ...] = ()


class Trained(Record):
    """What `warp train` left: the share of right answers on each part, and how many rows and parameters there are."""

    schema_version: Literal[1] = 1
    kind: Literal["train"] = "train"
    accuracy: dict[str, Share]
    counts: dict[str, Count]
    parameters: Count


class Teleport(Results):
    """What `warp teleport` did: the change of the function beside its bound, and the certificate."""

    kind: Literal["teleport"] = "teleport"
    outcome: Literal["holds", "does not hold"]
    what: str
    measured: FiniteFloat | None
    bound: FiniteFloat
    experiment_only: bool
    original: str
    teleported: str
    certificate: dict[str, Any]
    notes: tuple[str, ...] = ()
