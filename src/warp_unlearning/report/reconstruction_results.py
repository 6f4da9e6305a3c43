"""The results of a reconstruction (kind "reconstruction", schema version 2) as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from ..stats.verdict import EXIT, Outcome
from .fields import Field, Pairs
from .measures import Estimate, read_estimate

Scores = Mapping[str, Estimate]

METRICS = ("psnr", "ssim", "mse", "feature_mse", "lpips")


@dataclass(frozen=True)
class AttackResult:
    """One attack on one model: means over images by metric, beside those of attacks that saw nothing.

    `p` is corrected for all tests of all attacks on the model, and `reason` the comparison in words; `gain` is over the
    best blind attack, in decibels, and `share` that of decoys which the images resemble less than their targets. The
    outcome is that of the claim on the model, but "does not hold" only for an attack that shows it. `array` names its
    images.
    """

    name: str
    scores: Scores
    blind: Mapping[str, Scores]
    p: float
    reason: str
    outcome: Outcome
    best_blind: str
    gain: Estimate
    share: Estimate | None
    seconds: float
    notes: tuple[str, ...]
    array: str


@dataclass(frozen=True)
class AttackedModel:
    """A way of forgetting, and the attacks on the models that it left. `rows` are the images attacked, by their places
    among all; `defense` is "none" where there was none and None where nobody says.
    """

    name: str
    method: str | None
    defense: str | None
    method_settings: Pairs
    rows: tuple[int, ...]
    threat: tuple[str, ...]
    attacks: tuple[AttackResult, ...]
    not_tried: Pairs
    notes: tuple[str, ...]
    outcome: Outcome


@dataclass(frozen=True)
class ReconstructionResults:
    """A reconstruction as its results file tells it. `classes` has the class of every image attacked."""

    kind: ClassVar[str] = "reconstruction"
    date: str
    data: str
    level: float
    classes: tuple[str, ...]
    models: tuple[AttackedModel, ...]
    counts: Pairs
    settings: Pairs
    digests: Pairs
    versions: Pairs
    notes: tuple[str, ...]
    images_kept: bool

    @property
    def together(self) -> int:
        """How many examples a request forgot."""
        return int(dict(self.counts)["forgotten together"].replace(",", ""))


def read_reconstruction(field: Field) -> ReconstructionResults:
    """The results from the whole of a file."""
    names = field["classes"].texts()
    labels = [target["label"].count() for target in field["targets"]]
    if not all(label < len(names) for label in labels):
        field["targets"].wrong(f"labels of the {len(names)} classes")
    classes = tuple(names[label] for label in labels)
    claims, level = list(field["verdict"]["claims"]), field["level"].number()
    if not list(field["models"]) or len(claims) != len(list(field["models"])):
        field["models"].wrong("at least one model, and a claim on each")
    outcomes = [cast(Outcome, claim["outcome"].one_of(*EXIT)) for claim in claims]
    models = tuple(
        _model(model, len(classes), outcome, level) for model, outcome in zip(field["models"], outcomes, strict=True)
    )
    field["counts"]["forgotten together"].count()
    return ReconstructionResults(
        field["date"].text(),
        field["data"].text(),
        level,
        classes,
        models,
        tuple((name, f"{number.count():,}") for name, number in field["counts"].items()),
        field["settings"].scalars(),
        field["digests"].scalars(),
        field["versions"].scalars(),
        field["notes"].texts(),
        field["images_kept"].flag(),
    )


def _model(field: Field, images: int, outcome: Outcome, level: float) -> AttackedModel:
    rows = tuple(row.count() for row in field["rows"])
    if not rows or max(rows) >= images:
        field["rows"].wrong(f"a list of places among the {images} images")
    attacks = tuple(_attack(attack, outcome, level) for attack in field["attacks"])
    if not attacks:
        field["attacks"].wrong("at least one attack")
    return AttackedModel(
        field["name"].text(),
        field["method"].maybe(Field.text),
        field["defense"].maybe(Field.text),
        field["method_settings"].scalars(),
        rows,
        field["threat"].texts(),
        attacks,
        tuple((name, why.text()) for name, why in field["not_tried"].items()),
        field["notes"].texts(),
        outcome,
    )


def _attack(field: Field, outcome: Outcome, level: float) -> AttackResult:
    beyond, p = field["beyond"], field["adjusted_p"].number()
    shown: Outcome = "does not hold" if p < 1 - level else outcome
    if p >= 1 - level and outcome == "does not hold":
        shown = "cannot be said"
    best = beyond["best_blind"].text()
    named = beyond["identification"]
    return AttackResult(
        field["name"].text(),
        _scores(field["scores"]),
        {name: _scores(scores) for name, scores in field["blind"].items()},
        p,
        beyond["text"].text(),
        shown,
        best,
        read_estimate(beyond["psnr_gain"][best]),
        named.maybe(lambda found: read_estimate(found["share"])),
        field["seconds"].number(),
        field["notes"].texts(),
        field["array"].text(),
    )


def _scores(field: Field) -> Scores:
    summary = field["summary"]
    for name in ("psnr", "ssim", "mse"):
        read_estimate(summary[name])
    return {name: read_estimate(summary[name]) for name in METRICS if name in summary}
