"""One arm of a shadow audit, a method with a defence or without, from its results file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..stats import intervals
from ..stats.evidence import beyond_half, from_half, judge_shadows
from ..stats.intervals import normal_beyond
from ..stats.verdict import Evidence, Verdict
from . import schema
from .audit_shapes import Curve, Histogram, Risk, read_histogram, read_risk, read_roc
from .fields import Field, Pairs, showable
from .measures import Estimate, Rate, Score, read_estimate, read_rate, read_score


@dataclass(frozen=True)
class RetainLeakage:
    """How well examples that nobody asked to forget are told from unseen ones, before and after."""

    before: Estimate
    after: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Reduction:
    """The share of the attacker's advantage over chance that a defence takes away; None where none can be stated."""

    auc: Estimate | None
    tpr_at_1: Estimate | None
    note: str


@dataclass(frozen=True)
class GradientTest:
    """The gradient-difference test, mean over so many pairs of models. `rates` are means of each pair's rate at the
    threshold of that pair's own negatives; they may be empty.
    """

    auc: Estimate
    pairs: int
    rates: tuple[Rate, ...]

    def rate(self, fpr: float) -> Rate | None:
        """The rate at `fpr`, None where the file has none."""
        return next((rate for rate in self.rates if abs(rate.fpr - fpr) < 1e-9), None)


@dataclass(frozen=True)
class Strongest:
    """The strongest attacker who holds the models before and after; `strength` is max(AUC, 1 − AUC)."""

    attack: str
    strength: Estimate
    pairs: int


@dataclass(frozen=True)
class Accuracy:
    """Shares of examples that the unlearned models classify correctly."""

    forget: Estimate | None
    retain: Estimate | None
    test: Estimate | None


@dataclass(frozen=True)
class Seconds:
    """What unlearning one model took, and by what share that is more than without the defence."""

    unlearning: Estimate | None
    defense_share: Estimate | None


@dataclass(frozen=True)
class Arm:
    """One method with one defence, or without (`defense` None); parts that were not measured are None.

    `problem` says why there are no scores, empty where there are.
    """

    name: str
    method: str
    defense: str | None
    settings: Pairs
    complete: bool
    missing: int
    problem: str
    verdict: Verdict | None
    score: Score | None
    slices: Mapping[str, Score | None]
    against_originals: Score | None
    retain_leakage: RetainLeakage | None
    reduction: Reduction | None
    gradient_test: GradientTest | None
    strongest: Strongest | None
    accuracy: Accuracy | None
    roc: Curve | None
    histogram: Histogram | None
    risk: Risk | None
    seconds: Seconds | None


def read_arm(field: Field) -> Arm:
    """One arm from its row of the file."""
    return Arm(
        field["name"].text(),
        field["method"].text(),
        field["defense"].maybe(Field.text),
        field["settings"].pairs(),
        field["complete"].flag(),
        field["missing"].count(),
        (field["problem"].maybe(Field.text) or "") if "problem" in field else "",
        arm_verdict(field),
        field["all"].maybe(read_score),
        field["slices"].maybe(lambda f: {name: score.maybe(read_score) for name, score in f.items()}) or {},
        field["against_originals"].maybe(read_score),
        field["retain_leakage"].maybe(
            lambda f: RetainLeakage(*(read_estimate(f[name]) for name in ("before", "after", "difference")))
        ),
        field["reduction"].maybe(
            lambda f: Reduction(f["auc"].maybe(read_estimate), f["tpr_at_1"].maybe(read_estimate), f["note"].text())
        ),
        field["gradient_test"].maybe(read_gradient_test),
        field["strongest"].maybe(_strongest),
        field["accuracy"].maybe(
            lambda f: Accuracy(*(f[name].maybe(read_estimate) for name in ("forget", "retain", "test")))
        ),
        field["roc"].maybe(read_roc),
        field["histogram"].maybe(read_histogram),
        field["risk"].maybe(read_risk),
        field["seconds"].maybe(
            lambda f: Seconds(f["unlearning"].maybe(read_estimate), f["defense_share"].maybe(read_estimate)),
        ),
    )


def read_gradient_test(field: Field) -> GradientTest:
    """The gradient-difference test of one arm."""
    # Some files have null for the rates of several pairs.
    rates = field["rates"].maybe(lambda found: tuple(read_rate(rate) for rate in found)) if "rates" in field else None
    return GradientTest(read_estimate(field["auc"]), field["pairs"].count(), rates or ())


def _strongest(field: Field) -> Strongest:
    return Strongest(field["attack"].text(), read_estimate(field["strength"]), field["pairs"].count())


def read_verdict(field: Field) -> Verdict | None:
    """The verdict of a file, whose outcome must be that of its claims; None where nothing was scored."""
    try:
        return None if field.value is None else TypeAdapter(schema.Verdict).validate_python(_showable(field.value))
    except ValidationError as error:
        field.wrong(f"a verdict ({error.errors()[0]['msg']})")


def _showable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _showable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_showable(inner) for inner in value]
    return showable(value) if isinstance(value, str) else value


def arm_verdict(field: Field) -> Verdict | None:
    """The verdict of an arm; in a file of version 1 the judge's, from the ends of its intervals: it does not say what
    accuracy the originals had, nor what is seen of a slice of them.
    """
    if "verdict" in field:
        return read_verdict(field["verdict"])
    whole = field["all"].maybe(read_score)
    if whole is None:
        return None
    before = read_estimate(field["retain_leakage"]["before"]).known if field["retain_leakage"].value else None
    slices = field["slices"].items() if field["slices"].value else ()
    named = [("U-LiRA", field["all"]), *((name, score) for name, score in slices if score.value is not None)]
    shadows = field["all"]["shadows"].count() if "shadows" in field["all"] else 2
    return judge_shadows([e for item in named if (e := _evidence(*item, before)) is not None], shadows=shadows)


def _evidence(name: str, field: Field, before: intervals.Estimate | None) -> Evidence | None:
    score, p = read_score(field), field["p_value"].number()
    area, seen = score.auc.known, from_half(before or intervals.Estimate(0.5, 0.0, 1.0))
    if area is None:
        return None
    error, rates = (area.high - area.low) / 2 / normal_beyond(0.025), tuple(rate.known for rate in score.rates)
    return Evidence(name, "new outputs", area, before, (), beyond_half(area), error, p, p, seen, rates)
