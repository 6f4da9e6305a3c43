"""The tables of a report: every cell a number with its interval, or words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..stats.area import strength_of
from ..stats.intervals import Estimate
from ..stats.verdict import Outcome, p_value
from .figures import SHOWN
from .schema import AttackedModel, ImageScores, Pair, Reconstruction, rate_at
from .schema_shadow import Arm, Shadow
from .words import (
    DEFENSES,
    NOT_MEASURED,
    Pairs,
    Written,
    arm_label,
    counted,
    defense_label,
    flat,
    method_label,
    written,
    written_rate,
)


@dataclass(frozen=True)
class Cell:
    """A number, a line under it, and an outcome that marks it."""

    number: Written
    under: str = ""
    verdict: Outcome | None = None


_LABELS = {"psnr": "PSNR in dB", "ssim": "SSIM", "mse": "MSE", "feature_mse": "MSE of logits", "lpips": "LPIPS"}
_DIGITS = {"psnr": 2, "ssim": 3, "mse": 4, "feature_mse": 3, "lpips": 3}
_NONE = Cell(Written("–"))


@dataclass(frozen=True)
class Row:
    """A heading and its cells."""

    heading: str
    cells: tuple[Cell, ...]
    under: str = ""


@dataclass(frozen=True)
class Group:
    """Rows under one heading; an empty heading stands for none."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """`corner` is the heading of the row headings."""

    caption: str
    corner: str
    columns: tuple[str, ...]
    groups: tuple[Group, ...]


Tiles = tuple[tuple[str, Cell], ...]
"""Three numbers of the first screen, each under its name."""


def shadow_tiles(results: Shadow) -> Tiles:
    """The strongest attack by shadow models, the strongest with the weights, and the lowest test accuracy."""
    scored = [(strength_of(arm.all.auc), arm_label(arm)) for arm in results.arms if arm.all is not None]
    weights = [(arm.strongest.strength, arm_label(arm)) for arm in results.arms if arm.strongest is not None]
    kept = [
        (arm.accuracy.test, arm_label(arm))
        for arm in results.arms
        if arm.accuracy is not None and arm.accuracy.test is not None
    ]
    return (
        ("Largest AUC, shadow models", _extreme(scored, max)),
        ("Largest AUC, with the weights", _extreme(weights, max)),
        ("Lowest test accuracy", _extreme(kept, min, digits=1, scale=100, unit=" %")),
    )


def pair_tiles(results: Pair) -> Tiles:
    """The strongest attack, the smallest corrected p, and how many rows were compared."""
    rows, unseen = results.verdict.rows, results.verdict.unseen
    found = min(results.verdict.evidence, key=lambda e: e.adjusted, default=None)
    p = Cell(Written(NOT_MEASURED)) if found is None else Cell(Written(p_value(found.adjusted)), found.attack)
    return (
        ("Largest AUC of any attack", Cell(written(results.strongest_strength), results.strongest)),
        ("Smallest p, corrected", p),
        ("Rows compared", Cell(Written(f"{rows:,}"), f"forgotten, with {unseen:,} unseen ones")),
    )


def reconstruction_tiles(results: Reconstruction) -> Tiles:
    """The largest gain over attacks that saw nothing, the largest share of decoys beaten, and the images attacked."""
    every = [(attack, f"{attack.name}, {model.name}") for model in results.models for attack in model.attacks]
    gains = [(attack.beyond.psnr_gain[attack.beyond.best_blind], name) for attack, name in every]
    shares = [(a.beyond.identification.share, name) for a, name in every if a.beyond.identification is not None]
    return (
        ("Largest gain over seeing nothing", _extreme(gains, max, digits=2, unit=" dB")),
        ("Nearer than decoys, at most", _extreme(shares, max)),
        ("Images attacked", Cell(Written(f"{len(results.targets):,}"))),
    )


def _extreme(found: Sequence[tuple[Estimate, str]], which: Callable[..., Any], **form: Any) -> Cell:
    if not found:
        return Cell(Written(NOT_MEASURED))
    estimate, name = which(found, key=lambda pair: pair[0].value)
    return Cell(written(estimate, **form), name)


def matrix(results: Shadow) -> Table:
    """Methods by defences, those of the file: outcome of the verdict and AUC."""
    defenses = ordered_defenses(results)
    rows = []
    for method in results.methods:
        arms = {arm.defense: arm for arm in reversed(results.arms) if arm.method == method}
        rows.append(Row(method_label(method), tuple(_verdict_cell(arms.get(defense)) for defense in defenses)))
    return Table(
        "Verdict, and AUC of the attack by shadow models with its 95 % interval",
        "Method",
        tuple(defense_label(defense) for defense in defenses),
        (Group("", tuple(rows)),),
    )


def privacy_table(results: Shadow) -> Table:
    """What the attackers see, arm by arm."""
    slices = list(dict.fromkeys(name for arm in results.arms for name in arm.slices or ()))
    columns = (
        "Verdict",
        "AUC",
        *(f"TPR at {100 * fpr:g} % FPR" for fpr in SHOWN),
        *(f"AUC, {name}" for name in slices),
        "Test accuracy",
        "Reduction of AUC",
        "Strongest attacker with the weights",
    )
    return Table(
        "Forgotten against never-seen examples, with 95 % intervals",
        "Defence",
        columns,
        _grouped(results, [_privacy_row(arm, slices) for arm in results.arms]),
    )


def further_table(results: Shadow) -> Table:
    """The other comparisons, and what the models still know."""
    columns = (
        "AUC against originals that never saw them",
        "AUC of retained examples, before",
        "the same, after",
        "after less before",
        "AUC of the gradient test",
        "its TPR at 1 % FPR, threshold of each pair",
        "Reduction of TPR at 1 % FPR",
        "Accuracy, forgotten",
        "Accuracy, retained",
        "Time to unlearn one model",
    )
    return Table(
        "Other comparisons, accuracies and times, with 95 % intervals",
        "Defence",
        columns,
        _grouped(results, [_further_row(arm) for arm in results.arms]),
    )


def settings_table(results: Shadow) -> Pairs:
    """The settings of every arm on one line each; arms without any are left out."""
    return tuple(
        (arm.name, ", ".join(f"{name} = {value}" for name, value in flat(arm.settings)))
        for arm in results.arms
        if arm.settings
    )


def stage_table(results: Shadow) -> Table:
    """Jobs and seconds of every stage."""
    rows = tuple(
        Row(
            stage.name,
            (
                *(Cell(Written(f"{number:,}")) for number in (stage.jobs, stage.done, stage.failed)),
                Cell(Written(_duration(stage.seconds))),
            ),
        )
        for stage in results.stages
    )
    columns = ("Jobs", "Done", "Failed", "Computing time")
    return Table("Jobs and computing time of each stage, all workers together", "Stage", columns, (Group("", rows),))


def attack_table(results: Pair) -> Table:
    """The attacks of a pair audit."""
    evidence = {found.attack: found for found in results.verdict.evidence}
    extra = ["AUC, retrained instead"] if any(row.retrained for row in results.rows) else []
    extra += ["Beyond retrained"] if any(found.claim == "hidden" for found in evidence.values()) else []
    fprs = [rate.fpr for rate in results.rows[0].rates]
    rows = []
    for row in results.rows:
        own = evidence.get(row.name)
        beside = [row.retrained[0] if row.retrained else None]
        beside += [own.deviation if own is not None and own.claim == "hidden" else None]
        cells = (
            Cell(written(row.auc)),
            Cell(Written(NOT_MEASURED if own is None else f"{own.adjusted:.2g}")),
            *(Cell(written_rate(rate_at(row.rates, fpr))) for fpr in fprs),
            *(Cell(written(found)) for found in beside[: len(extra)]),
        )
        strongest = "the strongest" if row.name == results.strongest else ""
        rows.append(Row(row.name, cells, strongest))
    columns = ("AUC", "p, corrected", *(f"TPR at {100 * fpr:g} % FPR" for fpr in fprs))
    return Table(
        "Every attack, forgotten against never-seen examples",
        "Attack",
        (*columns, *extra),
        (Group("", tuple(rows)),),
    )


def score_table(results: Reconstruction) -> Table:
    """A group for every model: its attacks, then attacks that saw nothing."""
    present = [
        m for m in _LABELS if any(m in attack.scores.summary for model in results.models for attack in model.attacks)
    ]
    groups = tuple(
        Group(model.name, (*_attack_rows(results, model, present), *_blind_rows(model, present)))
        for model in results.models
    )
    columns = (
        "p, corrected",
        *(_LABELS[name] for name in present),
        "Gain over the best blind, dB",
        "Nearer than decoys",
    )
    return Table(
        f"Means over images, {100 * results.level:g} % intervals; larger PSNR and SSIM are nearer, others smaller",
        "Attack",
        columns,
        groups,
    )


def way_table(results: Reconstruction) -> Pairs:
    """How every model was made, on one line."""
    return tuple((model.name, _way(model)) for model in results.models)


def _way(model: AttackedModel) -> str:
    if model.method is None:
        return "nothing says how"
    defense = defense_label(None if model.defense == "none" else model.defense or "a defence")
    settings = ", ".join(f"{name} = {value}" for name, value in flat(model.method_settings))
    return f"{method_label(model.method)} with {defense}" + (f": {settings}" if settings else "")


def _attack_rows(results: Reconstruction, model: AttackedModel, present: list[str]) -> Iterator[Row]:
    for attack in model.attacks:
        beyond = attack.beyond
        cells = (
            Cell(Written(p_value(attack.adjusted_p)), verdict=results.outcome_of(model, attack)),
            *_cells(attack.scores, present),
            Cell(written(beyond.psnr_gain[beyond.best_blind], digits=2), f"over the {beyond.best_blind}"),
            Cell(written(None if beyond.identification is None else beyond.identification.share)),
        )
        yield Row(attack.name, cells)


def _blind_rows(model: AttackedModel, present: list[str]) -> Iterator[Row]:
    """Each blind attack once; what the same name scored beside another attack is named after that."""
    done: dict[str, list[ImageScores]] = {}
    for attack in model.attacks:
        for name, scores in attack.blind.items():
            if scores in done.setdefault(name, []):
                continue
            heading = f"{name} of {attack.name}" if done[name] else name
            done[name].append(scores)
            yield Row(heading, (_NONE, *_cells(scores, present), _NONE, _NONE), "saw nothing")


def _cells(scores: ImageScores, present: list[str]) -> Iterator[Cell]:
    for name in present:
        yield Cell(written(scores.summary.get(name), digits=_DIGITS[name]))


def ordered_defenses(results: Shadow) -> list[str | None]:
    """None, then those known here, then the others in the order of the file."""
    present = list(dict.fromkeys(arm.defense for arm in results.arms))
    known = [name for name in (None, *DEFENSES) if name in present]
    return [*known, *(name for name in present if name not in known)]


def _verdict_cell(arm: Arm | None) -> Cell:
    if arm is None:
        return Cell(Written("not in this audit"))
    number = written(None if arm.all is None else arm.all.auc)
    return Cell(number, under=_missing(arm), verdict=None if arm.verdict is None else arm.verdict.outcome)


def _privacy_row(arm: Arm, slices: Sequence[str]) -> Row:
    score, strongest = arm.all, arm.strongest
    sliced = [(arm.slices or {}).get(name) for name in slices]
    cells = (
        _verdict(arm),
        Cell(written(None if score is None else score.auc)),
        *(Cell(written_rate(None if score is None else rate_at(score.rates, fpr))) for fpr in SHOWN),
        *(Cell(written(None if found is None else found.auc)) for found in sliced),
        Cell(written(None if arm.accuracy is None else arm.accuracy.test, digits=1, scale=100, unit=" %")),
        _reduction(arm, "auc"),
        Cell(
            written(None if strongest is None else strongest.strength),
            "" if strongest is None else f"{strongest.attack}, {counted(strongest.pairs, 'pair')}",
        ),
    )
    return Row(defense_label(arm.defense), cells, _missing(arm))


def _verdict(arm: Arm) -> Cell:
    if arm.verdict is None:
        return Cell(Written(NOT_MEASURED))
    return Cell(Written(arm.verdict.outcome), ", ".join(arm.verdict.reasons), arm.verdict.outcome)


def _further_row(arm: Arm) -> Row:
    retained, test, accuracy = arm.retain_leakage, arm.gradient_test, arm.accuracy
    cells = (
        Cell(written(None if arm.against_originals is None else arm.against_originals.auc)),
        *(
            Cell(written(None if retained is None else found))
            for found in ((None,) * 3 if retained is None else (retained.before, retained.after, retained.difference))
        ),
        Cell(written(None if test is None else test.auc), "" if test is None else counted(test.pairs, "pair")),
        Cell(written_rate(None if test is None else rate_at(test.rates, 0.01))),
        _reduction(arm, "tpr_at_1"),
        *(
            Cell(written(found, digits=1, scale=100, unit=" %"))
            for found in ((None,) * 2 if accuracy is None else (accuracy.forget, accuracy.retain))
        ),
        _seconds(arm),
    )
    return Row(defense_label(arm.defense), cells, _missing(arm))


def _reduction(arm: Arm, which: str) -> Cell:
    if arm.reduction is None:
        return Cell(Written("–" if arm.defense is None else NOT_MEASURED))
    found = getattr(arm.reduction, which)
    if found is None:
        return Cell(Written("none stated"), arm.reduction.note)
    return Cell(written(found, digits=0, scale=100, unit=" %"))


def _grouped(results: Shadow, rows: Sequence[Row]) -> tuple[Group, ...]:
    by_arm = list(zip(results.arms, rows, strict=True))
    return tuple(
        Group(method_label(method), tuple(row for arm, row in by_arm if arm.method == method))
        for method in results.methods
    )


def _missing(arm: Arm) -> str:
    if arm.missing:
        return f"incomplete: {counted(arm.missing, 'model')} missing"
    return "" if arm.complete else "incomplete"


def _seconds(arm: Arm) -> Cell:
    if arm.seconds is None:
        return Cell(Written(NOT_MEASURED))
    share = arm.seconds.defense_share
    return Cell(
        written(arm.seconds.unlearning, digits=2, unit=" s"),
        "" if share is None else f"{_percent(share)} against no defence",
    )


def _percent(share: Estimate) -> str:
    """A signed share in percent with its interval."""
    value, low, high = (f"{100 * end:+.0f}".replace("-", "−") for end in (share.value, share.low, share.high))
    return f"{value} % [{low}, {high}]" if isfinite(share.low) and isfinite(share.high) else f"{value} %"


def _duration(seconds: float | None) -> str:
    """Seconds in the unit that people would use.

    >>> _duration(42.3), _duration(600.0), _duration(9000.0)
    ('42.3 s', '10.0 min', '2.5 h')
    """
    if seconds is None:
        return NOT_MEASURED
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
