"""What `results.json` of an audit by shadow models and of a study holds, field by field."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from .schema import Count, Estimate, Rates, Record, Results, Share, Verdict


class Score(Record):
    """What one attack by shadow models scored on forgotten against never-seen examples. The last four are of files of
    version 1, which had a verdict on each attack.
    """

    auc: Estimate
    rates: Rates
    positives: Count
    negatives: Count
    notes: tuple[str, ...]
    level: Share = 0.95
    p_value: Share | None = None
    balanced_accuracy: Share | None = None
    shadows: Count | None = None
    points: Count | None = None
    variance: str = ""
    strength: Share | None = None
    margin: Share | None = None
    direction: str = ""
    verdict: str = ""


class Change(Record):
    """What a defence changes, over so many shadows: the share of the attacker's advantage that is gone, and of that at
    a false-positive rate of 1 %, by what share 1 − AUC rises, and how much lower the AUC is; `note` says why not.
    """

    auc: Estimate | None
    tpr_at_1: Estimate | None = None
    note: str
    shadows: Count | None = None
    privacy: Estimate | None = None
    difference: Estimate | None = None


class BeforeAfter(Record):
    """An area before and after, and how much larger it is after."""

    before: Estimate
    after: Estimate
    difference: Estimate


class PairAttack(Record):
    """An attack on pairs of models: means over so many; a rate is at the threshold of each pair's own negatives."""

    name: str
    auc: Estimate
    pairs: Count
    rates: Rates | None = None


class GradientTest(Record):
    """The gradient-difference test, how much lower its area is than without the defence, and the share of its advantage
    that is gone.
    """

    auc: Estimate
    pairs: Count
    rates: Rates | None = None
    difference: Estimate | None = None
    reduction: Estimate | None = None


class Strongest(Record):
    """The strongest attacker who holds the models before and after; `strength` is max(AUC, 1 − AUC)."""

    attack: str
    strength: Estimate
    pairs: Count
    verdict: str = ""


class ArmAccuracy(Record):
    """Shares of examples that the unlearned models classify correctly."""

    forget: Estimate | None
    retain: Estimate | None
    test: Estimate | None


class Seconds(Record):
    """What unlearning one model took, and by what share that is more than without the defence."""

    unlearning: Estimate | None
    defense_share: Estimate | None


class MeanTeleports(Record):
    """How many teleports an unlearning makes, the shares that were taken back and that moved nothing, and by what
    factor one changes the energy.
    """

    unmoved: Share
    count: Estimate | None = None
    taken_back: Share | None = None
    energy_factor: Estimate | None = None


class Curve(Record):
    """Vertices of an ROC curve."""

    fpr: tuple[Share, ...] = Field(min_length=2)
    tpr: tuple[Share, ...]

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.fpr) != len(self.tpr):
            raise ValueError(f"there are {len(self.fpr)} values of fpr and {len(self.tpr)} of tpr")
        return self


class Histogram(Record):
    """Densities of the log likelihood ratio under the two hypotheses, between rising edges."""

    edges: tuple[float, ...] = Field(min_length=2)
    forgotten: tuple[float, ...]
    never: tuple[float, ...]

    @model_validator(mode="after")
    def _between_edges(self) -> Self:
        if not len(self.edges) - 1 == len(self.forgotten) == len(self.never):
            raise ValueError(f"{len(self.edges)} edges need one value fewer under each hypothesis")
        if any(left >= right for left, right in pairwise(self.edges)):
            raise ValueError("the edges must rise")
        return self


class Risk(Record):
    """Norms of forget gradients, those of the original or of the unlearned model, beside the attacker's scores."""

    gradient_norm: tuple[float, ...]
    score: tuple[float, ...]
    correlation: Estimate | None = None
    model: Literal["original", "unlearned"] = "unlearned"

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.gradient_norm) != len(self.score):
            raise ValueError(f"there are {len(self.gradient_norm)} gradient norms and {len(self.score)} scores")
        return self


class Against(Record):
    """How much lower the AUC is, and how much higher the test accuracy, than with another defence."""

    auc: Estimate | None = None
    test_accuracy: Estimate | None = None


class Arm(Record):
    """One method with one defence, or without (`defense` null); what was not measured is null, and `problem` says why
    there are no scores. A study adds how many forget sets of each shadow were to be unlearned and of how many shadows
    there are models, how many models diverged (they are among the missing), what was swept, and changes.
    """

    name: str
    method: str
    defense: str | None
    settings: dict[str, Any]
    complete: bool
    missing: Count
    verdict: Verdict | None
    all: Score | None
    slices: dict[str, Score | None] | None
    against_originals: Score | None
    retain_leakage: BeforeAfter | None
    reduction: Change | None
    gradient_test: GradientTest | None
    strongest: Strongest | None
    accuracy: ArmAccuracy | None
    roc: Curve | None
    histogram: Histogram | None
    risk: Risk | None
    seconds: Seconds | None
    problem: str | None = None
    slice_reductions: dict[str, Change | None] | None = None
    swept: dict[str, float] = Field(default_factory=dict)
    sets: Count | None = None
    shadows: Count | None = None
    against: dict[str, Against] = Field(default_factory=dict)
    pair_attacks: tuple[PairAttack, ...] = ()
    diverged: Count = 0
    moved: Estimate | None = None
    teleports: MeanTeleports | None = None


class Audited(Record):
    """What was audited: data, network, and how many shadows, forget sets of each, points and examples."""

    data: str
    model: str
    classes: tuple[str, ...] = ()
    shadows: Count
    forget_sets: Count
    points: Count
    forgotten_share: Share
    forget_set_size: Count
    training_examples: Count
    seed: Count


class Stage(Record):
    """The jobs of one stage and the seconds they took together."""

    name: str
    jobs: Count
    done: Count
    failed: Count
    seconds: float | None


class Failure(Record):
    """A job that failed, and why."""

    job: str
    reason: str


class About(Results):
    """What an audit by shadow models and a study say of how they were made."""

    kind: Literal["shadow", "study"]
    study: str = ""
    date: str = ""
    complete: bool | None = None
    left: Count = 0
    stages: tuple[Stage, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    configuration: dict[str, Any] = Field(default_factory=dict)
    digests: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, Any] = Field(default_factory=dict)
    hardware: dict[str, Any] = Field(default_factory=dict)


class Rows(About):
    """A study whose rows are times or images, and the rows that it was to have."""

    rows: tuple[dict[str, Any], ...] = Field(min_length=1)
    missing: tuple[str, ...] = ()
    diverged: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)


class Shadow(About):
    """What an audit by shadow models found, alone or as a study; `shadows_complete` is how many shadows have every
    result, and `originals_trained_again` are those whose models do not all start from the same weights.
    """

    audited: Audited
    threat: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = Field(min_length=1)
    shadows_complete: Count | None = None
    originals_trained_again: tuple[Count, ...] = ()
    made_on: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole_audit(self) -> Self:
        needed = ("date", "threat", "stages", "failures", "notes", "not_tested", "configuration", "digests", "versions")
        missing = [name for name in (*needed, "hardware") if name not in self.model_fields_set]
        if self.kind == "shadow" and missing:
            raise ValueError(f"an audit by shadow models has no field {missing[0]!r}")
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the file."""
        return tuple(dict.fromkeys(arm.method for arm in self.arms))

    @property
    def missing(self) -> int:
        """Unlearned models that could not be made."""
        return sum(arm.missing for arm in self.arms)

    @property
    def finished(self) -> bool:
        """Whether everything that was planned was done."""
        unfinished = any(stage.failed or stage.done < stage.jobs for stage in self.stages)
        return not (self.missing or self.failures or unfinished) and all(
            arm.complete and not arm.problem for arm in self.arms
        )
