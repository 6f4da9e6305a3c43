"""The results of a reconstruction (kind "reconstruction", schema version 1) as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..stats.verdict import Outcome, worst
from .fields import Field, Pairs
from .measures import Estimate, read_estimate

Scores = Mapping[str, Estimate]

METRICS = ("psnr", "ssim", "mse", "feature_mse", "lpips")
_OUTCOMES: Mapping[str, Outcome] = {
    "beyond the prior": "does not hold",
    "nothing beyond the prior": "holds",
    "inconclusive": "cannot be said",
}


@dataclass(frozen=True)
class AttackResult:
    """One attack on one model: means over images by metric, beside those of attacks that saw nothing.

    `said` is the outcome in the words of the file and `reason` why; `gain` is over the best blind attack, in decibels,
    and `share` that of decoys which the images resemble less than their targets. `array` names its images.
    """

    name: str
    scores: Scores
    blind: Mapping[str, Scores]
    said: str
    reason: str
    best_blind: str
    gain: Estimate
    share: Estimate | None
    seconds: float
    notes: tuple[str, ...]
    array: str

    @property
    def outcome(self) -> Outcome:
        """The outcome in the words of the judge."""
        return _OUTCOMES[self.said]


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

    @property
    def outcome(self) -> Outcome:
        """The worst of its attacks."""
        return worst([attack.outcome for attack in self.attacks])


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
    classes = tuple(target["class"].text() for target in field["targets"])
    models = tuple(_model(model, len(classes)) for model in field["models"])
    if not models:
        field["models"].wrong("at least one model")
    field["counts"]["forgotten together"].count()
    return ReconstructionResults(
        field["date"].text(),
        field["data"].text(),
        field["level"].number(),
        classes,
        models,
        tuple((name, f"{number.count():,}") for name, number in field["counts"].items()),
        field["settings"].scalars(),
        field["digests"].scalars(),
        field["versions"].scalars(),
        field["notes"].texts(),
        field["images_kept"].flag(),
    )


def _model(field: Field, images: int) -> AttackedModel:
    rows = tuple(row.count() for row in field["rows"])
    if not rows or max(rows) >= images:
        field["rows"].wrong(f"a list of places among the {images} images")
    attacks = tuple(_attack(attack) for attack in field["attacks"])
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
    )


def _attack(field: Field) -> AttackResult:
    beyond = field["beyond"]
    best = beyond["best_blind"].text()
    named = beyond["identification"]
    return AttackResult(
        field["name"].text(),
        _scores(field["scores"]),
        {name: _scores(scores) for name, scores in field["blind"].items()},
        beyond["verdict"].one_of(*_OUTCOMES),
        beyond["reason"].text(),
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
