"""The results of a shadow audit (kind "shadow", schema version 1) as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ..stats.reading import Verdict
from .fields import Field
from .measures import Estimate, Rate, Score, read_estimate, read_rate, read_score, read_verdict, reading, worst

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Audited:
    """What was audited."""

    data: str
    model: str
    classes: tuple[str, ...]
    shadows: int
    forget_sets: int
    points: int
    forgotten_share: float
    forget_set_size: int
    training_examples: int
    seed: int


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
    """The strongest attacker who holds the models before and after; `strength` is max(AUC, 1 − AUC).

    `verdict` is what the file says of it. Without one, a single pair's interval can be read, since it holds for all
    attacks at once; a mean over several pairs cannot: every strength is at least ½, so that their mean lies above ½
    even where nothing leaks.
    """

    attack: str
    strength: Estimate
    pairs: int
    verdict: Verdict | None


@dataclass(frozen=True)
class Accuracy:
    """Shares of examples that the unlearned models classify correctly."""

    forget: Estimate | None
    retain: Estimate | None
    test: Estimate | None


@dataclass(frozen=True)
class Curve:
    """Vertices of an ROC curve, or any two lists of one length."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Histogram:
    """Densities of the log likelihood ratio under the two hypotheses."""

    edges: tuple[float, ...]
    forgotten: tuple[float, ...]
    never: tuple[float, ...]


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
    risk: Curve | None
    seconds: Seconds | None

    @property
    def verdicts(self) -> Mapping[str, Verdict | None]:
        """What each test of this arm says by itself; None where it was not made."""
        found = {"shadow models": None if self.score is None else self.score.verdict}
        found |= {name: None if score is None else score.verdict for name, score in self.slices.items()}
        found["gradient test"] = None if self.gradient_test is None else reading(self.gradient_test.auc)
        found["strongest attacker"] = None if self.strongest is None else self.strongest.verdict
        return found

    @property
    def verdict(self) -> Verdict | None:
        """A leak if any test found one, no leak only if every test that was made found none."""
        return worst(list(self.verdicts.values()))


@dataclass(frozen=True)
class Stage:
    """The jobs of one stage and the seconds they took together."""

    name: str
    jobs: int
    done: int
    failed: int
    seconds: float | None


@dataclass(frozen=True)
class ShadowResults:
    """A shadow audit, as its results file tells it."""

    kind: ClassVar[str] = "shadow"
    date: str
    audited: Audited
    threat: tuple[str, ...]
    arms: tuple[Arm, ...]
    stages: tuple[Stage, ...]
    failures: Pairs
    notes: tuple[str, ...]
    not_tested: tuple[str, ...]
    configuration: Pairs
    digests: Pairs
    versions: Pairs
    hardware: Pairs

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the file."""
        return tuple(dict.fromkeys(arm.method for arm in self.arms))

    @property
    def missing(self) -> int:
        """Unlearned models that could not be made."""
        return sum(arm.missing for arm in self.arms)

    @property
    def complete(self) -> bool:
        """Whether everything that was planned was done."""
        unfinished = any(stage.failed or stage.done < stage.jobs for stage in self.stages)
        return not (self.missing or self.failures or unfinished) and all(
            arm.complete and not arm.problem for arm in self.arms
        )

    def arms_of(self, method: str) -> tuple[Arm, ...]:
        """The arms of one method, in the order of the file."""
        return tuple(arm for arm in self.arms if arm.method == method)


def read_shadow(field: Field) -> ShadowResults:
    """The results from the whole of a file."""
    arms = tuple(_arm(arm) for arm in field["arms"])
    if not arms:
        field["arms"].wrong("at least one combination of method and defence")
    return ShadowResults(
        field["date"].text(),
        _audited(field["audited"]),
        field["threat"].texts(),
        arms,
        tuple(_stage(stage) for stage in field["stages"]),
        tuple((failure["job"].text(), failure["reason"].text()) for failure in field["failures"]),
        field["notes"].texts(),
        field["not_tested"].texts(),
        *(_pairs(field[name]) for name in ("configuration", "digests", "versions", "hardware")),
    )


def _audited(field: Field) -> Audited:
    return Audited(
        field["data"].text(),
        field["model"].text(),
        field["classes"].texts(),
        field["shadows"].count(),
        field["forget_sets"].count(),
        field["points"].count(),
        field["forgotten_share"].number(),
        field["forget_set_size"].count(),
        field["training_examples"].count(),
        field["seed"].count(),
    )


def _arm(field: Field) -> Arm:
    return Arm(
        field["name"].text(),
        field["method"].text(),
        field["defense"].maybe(Field.text),
        _pairs(field["settings"]),
        field["complete"].flag(),
        field["missing"].count(),
        (field["problem"].maybe(Field.text) or "") if "problem" in field else "",
        field["all"].maybe(read_score),
        field["slices"].maybe(lambda f: {name: score.maybe(read_score) for name, score in f.items()}) or {},
        field["against_originals"].maybe(read_score),
        field["retain_leakage"].maybe(
            lambda f: RetainLeakage(*(read_estimate(f[name]) for name in ("before", "after", "difference")))
        ),
        field["reduction"].maybe(
            lambda f: Reduction(f["auc"].maybe(read_estimate), f["tpr_at_1"].maybe(read_estimate), f["note"].text())
        ),
        field["gradient_test"].maybe(_gradient_test),
        field["strongest"].maybe(_strongest),
        field["accuracy"].maybe(
            lambda f: Accuracy(*(f[name].maybe(read_estimate) for name in ("forget", "retain", "test")))
        ),
        field["roc"].maybe(_roc),
        field["histogram"].maybe(_histogram),
        field["risk"].maybe(_risk),
        field["seconds"].maybe(
            lambda f: Seconds(f["unlearning"].maybe(read_estimate), f["defense_share"].maybe(read_estimate)),
        ),
    )


def _gradient_test(field: Field) -> GradientTest:
    # Some files have null for the rates of several pairs.
    rates = field["rates"].maybe(lambda found: tuple(read_rate(rate) for rate in found)) if "rates" in field else None
    return GradientTest(read_estimate(field["auc"]), field["pairs"].count(), rates or ())


def _strongest(field: Field) -> Strongest:
    strength, pairs = read_estimate(field["strength"]), field["pairs"].count()
    verdict = reading(strength) if pairs == 1 else None
    if "verdict" in field:
        verdict = field["verdict"].maybe(read_verdict)
    return Strongest(field["attack"].text(), strength, pairs, verdict)


def _roc(field: Field) -> Curve | None:
    fpr, tpr = field["fpr"].numbers(), field["tpr"].numbers()
    if len(fpr) != len(tpr):
        field.wrong(f"as many values of tpr as of fpr ({len(tpr)} and {len(fpr)} found)")
    if any(not 0 <= rate <= 1 for rate in (*fpr, *tpr)):
        field.wrong("rates between 0 and 1")
    return Curve(fpr, tpr) if len(fpr) > 1 else None


def _histogram(field: Field) -> Histogram | None:
    edges, forgotten, never = (field[name].numbers() for name in ("edges", "forgotten", "never"))
    if edges and not len(edges) - 1 == len(forgotten) == len(never):
        field.wrong(f"one value fewer than the {len(edges)} edges under each hypothesis")
    if any(left >= right for left, right in pairwise(edges)):
        field["edges"].wrong("a rising list of numbers")
    return Histogram(edges, forgotten, never) if len(edges) > 1 else None


def _risk(field: Field) -> Curve | None:
    norms = [norm.maybe_number() for norm in field["gradient_norm"]]
    scores = [score.maybe_number() for score in field["score"]]
    if len(norms) != len(scores):
        field.wrong(f"as many scores as gradient norms ({len(scores)} and {len(norms)} found)")
    known = [(n, s) for n, s in zip(norms, scores, strict=True) if n is not None and s is not None]
    return Curve(tuple(n for n, _ in known), tuple(s for _, s in known)) if known else None


def _stage(field: Field) -> Stage:
    jobs, done, failed = (field[name].count() for name in ("jobs", "done", "failed"))
    return Stage(field["name"].text(), jobs, done, failed, field["seconds"].maybe_number())


def _pairs(field: Field) -> Pairs:
    field.mapping()
    return field.scalars()
