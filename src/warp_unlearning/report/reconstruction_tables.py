"""The tables of a reconstruction: every attack beside those that saw nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ..stats.verdict import p_value
from .labels import defense_label, method_label
from .measures import Estimate, Written, written
from .reconstruction_results import METRICS, AttackedModel, ReconstructionResults, Scores
from .tables import Cell, Group, Row, Table

_LABELS = {"psnr": "PSNR in dB", "ssim": "SSIM", "mse": "MSE", "feature_mse": "MSE of logits", "lpips": "LPIPS"}
_DIGITS = {"psnr": 2, "ssim": 3, "mse": 4, "feature_mse": 3, "lpips": 3}
_NONE = Cell(Written("–"))


def score_table(results: ReconstructionResults) -> Table:
    """A group for every model: its attacks, then attacks that saw nothing."""
    present = [m for m in METRICS if any(m in attack.scores for model in results.models for attack in model.attacks)]
    groups = tuple(
        Group(model.name, (*_attack_rows(model, present), *_blind_rows(model, present))) for model in results.models
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


def way_table(results: ReconstructionResults) -> tuple[tuple[str, str], ...]:
    """How every model was made, on one line."""
    return tuple((model.name, _way(model)) for model in results.models)


def _way(model: AttackedModel) -> str:
    if model.method is None:
        return "nothing says how"
    defense = defense_label(None if model.defense == "none" else model.defense or "a defence")
    settings = ", ".join(f"{name} = {value}" for name, value in model.method_settings)
    return f"{method_label(model.method)} with {defense}" + (f": {settings}" if settings else "")


def _attack_rows(model: AttackedModel, present: list[str]) -> Iterator[Row]:
    for attack in model.attacks:
        cells = (
            Cell(Written(p_value(attack.p)), verdict=attack.outcome),
            *_cells(attack.scores, present),
            Cell(written(attack.gain, digits=2), f"over the {attack.best_blind}"),
            Cell(written(attack.share)),
        )
        yield Row(attack.name, cells)


def _blind_rows(model: AttackedModel, present: list[str]) -> Iterator[Row]:
    """Each blind attack once; what the same name scored beside another attack is named after that."""
    done: dict[str, list[Scores]] = {}
    for attack in model.attacks:
        for name, scores in attack.blind.items():
            if scores in done.setdefault(name, []):
                continue
            heading = f"{name} of {attack.name}" if done[name] else name
            done[name].append(scores)
            yield Row(heading, (_NONE, *_cells(scores, present), _NONE, _NONE), "saw nothing")


def _cells(scores: Scores, present: list[str]) -> Iterator[Cell]:
    unknown = Estimate(None, None, None)
    for name in present:
        yield Cell(written(scores.get(name, unknown), digits=_DIGITS[name]))
