"""What `results.json` of each command holds, field by field.

The models refuse unknown fields and cannot be changed, so a file that is read is a file that was written. A bound that
is infinite is null, as JSON has no infinity. Names of rows are never among the fields: they would outlive the deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import inf, isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from ..bounds.report import ReconstructionFloor
from ..data.files import to_json
from ..stats import intervals, verdict
from ..stats.verdict import Outcome

SCHEMA_VERSION: Literal[2] = 2

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Record(BaseModel):
    """A part of a results file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Results(Record):
    """A whole results file; the first line says which form it has, and `kind` of what."""

    schema_version: Literal[2] = SCHEMA_VERSION


def _read_estimate(plain: object) -> intervals.Estimate:
    if isinstance(plain, intervals.Estimate):
        plain = asdict(plain)
    if not isinstance(plain, Mapping) or set(plain) != {"value", "low", "high"}:
        raise ValueError("an estimate has a value, a low and a high end")
    for end, unknown in (("low", -inf), ("high", inf)):
        plain = {**plain, end: unknown if plain[end] is None else plain[end]}
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in plain.values()):
        raise ValueError("a number is needed")
    try:
        plain = {name: float(number) for name, number in plain.items()}
    except OverflowError as error:
        raise ValueError("a finite number is needed") from error
    if not isfinite(plain["value"]) or not plain["low"] <= plain["high"]:
        raise ValueError("a finite value is needed, and a lower end that is not above the upper one")
    return intervals.Estimate(**plain)


Estimate = Annotated[
    intervals.Estimate,
    PlainValidator(_read_estimate),
    PlainSerializer(lambda found: to_json(asdict(found)), return_type=dict[str, Any]),
]
"""A value and the ends of its interval, an end null where it is not known or infinite."""


def _read_verdict(plain: object, read: ValidatorFunctionWrapHandler) -> verdict.Verdict:
    if isinstance(plain, verdict.Verdict):
        plain = plain.as_json()
    if not isinstance(plain, Mapping):
        raise ValueError(f"a verdict is a mapping of fields, not a {type(plain).__name__}")
    follows = ("outcome", "exit", "reasons", "sentence")
    found: verdict.Verdict = read({key: value for key, value in plain.items() if key not in follows})
    ps = [p for e in found.evidence for p in (e.p, e.adjusted)]
    if min(found.rows, found.unseen) < 0 or not all(0 <= p <= 1 for p in ps):
        raise ValueError("a verdict has a negative count, or a p outside [0, 1]; the file was changed by hand")
    if not found.claims or any(to_json(getattr(found, key)) != to_json(plain.get(key)) for key in follows):
        outcome = plain.get("outcome")
        raise ValueError(f"the outcome {outcome!r} is not that of the claims; the file was changed by hand")
    return found


Verdict = Annotated[
    verdict.Verdict, WrapValidator(_read_verdict), PlainSerializer(verdict.Verdict.as_json, return_type=dict[str, Any])
]
"""A verdict, written with the outcome, exit code, reasons and last line that follow from its claims."""


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
    largest_drift: float | None
    energy_before: float | None
    energy_after: float | None
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
    seconds: float
    cpu_seconds: float
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


class TrainedPrior(Results):
    """What `warp train-prior` left: the mean PSNR of what the generator makes of images it learned from and of images
    held out, beside that of the mean image, and how many images each part has.
    """

    kind: Literal["prior"] = "prior"
    psnr: dict[Literal["train", "held_out"], dict[Literal["prior", "mean_image"], float]]
    counts: dict[Literal["train", "held_out", "excluded"], Count]
    parameters: Count


class Teleport(Results):
    """What `warp teleport` did: the change of the function beside its bound, and the certificate."""

    kind: Literal["teleport"] = "teleport"
    outcome: Literal["holds", "does not hold"]
    what: str
    measured: float | None
    bound: float
    experiment_only: bool
    original: str
    teleported: str
    certificate: dict[str, Any]
    notes: tuple[str, ...] = ()


class ImageScores(Record):
    """Each metric of every image, and its mean."""

    per_image: dict[str, tuple[float, ...]]
    summary: dict[str, Estimate]


class Identified(Record):
    """The mean share of decoys that an image resembles less than its target, each image's share and its decoys."""

    share: Estimate
    shares: tuple[Share, ...]
    decoys: tuple[Count, ...]


class BeyondPrior(Record):
    """An attack beside blind ones: the gain in PSNR over each, the p-value of each test, and all of it in words."""

    best_blind: str
    psnr_gain: dict[str, Estimate]
    identification: Identified | None
    tests: dict[str, Share]
    text: str


class ImageAttack(Record):
    """One attack on one way of forgetting. `adjusted_p` is corrected for all tests of all attacks there, `losses` and
    `restarts` are distances from what the attack read as `after` says, and `array` names its images in images.npz.
    """

    name: str
    after: str
    scores: ImageScores
    blind: dict[str, ImageScores]
    beyond: BeyondPrior
    adjusted_p: Share
    labels: tuple[tuple[Count, ...], ...]
    losses: tuple[float, ...]
    restarts: tuple[tuple[float, ...], ...]
    settings: dict[str, Any]
    seconds: float
    notes: tuple[str, ...]
    array: str


class AttackedModel(Record):
    """Models that forgot in one way, the rows of the images they forgot among `targets`, and the attacks on them.
    `defense` is "none" where there was none and null where nobody says.
    """

    name: str
    paths: tuple[str, ...]
    method: str | None
    method_settings: dict[str, Any]
    defense: str | None
    rows: tuple[Count, ...]
    threat: tuple[str, ...]
    attacks: tuple[ImageAttack, ...]
    not_tried: dict[str, str]
    notes: tuple[str, ...]


class Reconstruction(Results):
    """What `warp reconstruct` found. The verdict has a claim *beyond prior* on each of `models`, in their order."""

    kind: Literal["reconstruction"] = "reconstruction"
    date: str
    data: str
    level: Share = 0.95
    counts: dict[str, Count]
    classes: tuple[str, ...]
    targets: tuple[dict[Literal["position", "label"], Count], ...]
    models: tuple[AttackedModel, ...]
    verdict: Verdict
    settings: dict[str, Any]
    digests: dict[str, Any]
    versions: dict[str, str]
    notes: tuple[str, ...]
    images_kept: bool

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.models or len(self.verdict.claims) != len(self.models):
            raise ValueError(f"{len(self.models)} models have {len(self.verdict.claims)} claims; one on each is needed")
        if not all(target["label"] < len(self.classes) for target in self.targets):
            raise ValueError(f"targets have labels beyond the {len(self.classes)} classes")
        if "forgotten together" not in self.counts:
            raise ValueError("counts do not say how many were forgotten together")
        for model in self.models:
            if not model.attacks or not model.rows or max(model.rows) >= len(self.targets):
                raise ValueError(f"{model.name} needs an attack, and rows among the {len(self.targets)} targets")
            for attack in model.attacks:
                missing = {"psnr", "ssim", "mse"} - attack.scores.summary.keys()
                if missing or attack.beyond.best_blind not in attack.beyond.psnr_gain:
                    raise ValueError(f"{attack.name} on {model.name} has no {missing or 'gain over the best blind'}")
        return self

    @property
    def shown_classes(self) -> tuple[str, ...]:
        """The class of every image attacked."""
        return tuple(self.classes[target["label"]] for target in self.targets)

    def claim_on(self, model: AttackedModel) -> Outcome:
        """The outcome of the claim on one of the models."""
        return next(c.outcome for m, c in zip(self.models, self.verdict.claims, strict=True) if m is model)

    def outcome_of(self, model: AttackedModel, attack: ImageAttack) -> Outcome:
        """The outcome of the claim on the model, but "does not hold" only for an attack that shows it."""
        if attack.adjusted_p < 1 - self.level:
            return "does not hold"
        claim = self.claim_on(model)
        return "cannot be said" if claim == "does not hold" else claim


class Bounds(Results):
    """What `warp bounds` computed of the model with this digest."""

    kind: Literal["bounds"] = "bounds"
    data: str
    model: str
    floor: ReconstructionFloor


class Rate(Record):
    """A true-positive rate at a false-positive rate; `tpr` is null where so few unseen rows cannot resolve it."""

    fpr: Share
    resolved: bool
    negatives: Count
    tpr: Estimate | None

    @model_validator(mode="after")
    def _resolved_or_not(self) -> Self:
        if self.resolved != (self.tpr is not None):
            raise ValueError(f"resolved is {self.resolved}, and tpr is {self.tpr}")
        return self


Rates = tuple[Rate, ...]


def rate_at(rates: Rates | None, fpr: float) -> Rate | None:
    """The rate at `fpr`, None where there is none."""
    return next((rate for rate in rates or () if abs(rate.fpr - fpr) < 1e-9), None)


class AttackRow(Record):
    """One attack after one pre-step: the area of the unlearned model, of the original where the attack sees one model
    alone, and of each retrained model; and rates of the unlearned one.
    """

    name: str
    attack: str
    step: str
    needs: verdict.Needs
    auc: Estimate
    original: Estimate | None
    retrained: tuple[Estimate, ...]
    rates: tuple[Rate, ...]


class Pair(Results):
    """What `warp audit pair` found. `models` holds accuracy and mean loss of each model on forgotten and unseen rows,
    `strongest_strength` max(AUC, 1 - AUC) of the strongest row with an interval that holds for all rows at once,
    `not_tried` why an attack or a pre-step was left out, `threat` what the attacker holds.
    """

    kind: Literal["pair"] = "pair"
    verdict: Verdict
    rows: tuple[AttackRow, ...]
    strongest: str
    strongest_strength: Estimate
    not_tried: dict[str, str]
    models: dict[str, dict[str, float]]
    counts: dict[str, Count]
    digests: dict[str, str]
    settings: dict[str, Any]
    threat: tuple[str, ...]
    notes: tuple[str, ...]
    date: str
