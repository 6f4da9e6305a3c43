"""The part of the demo that shows defences: each method alone and defended, from the runs that hold both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ..cli.subject import load_run
from ..data.examples import TensorExamples
from ..defense.certificate import lengths, measured, reached_weights
from ..runs.directory import open_run
from ..symmetry.moves import ChannelMove
from ..training.scoring import accuracy, mean_energy

SHOWN = ("warp", "fastwarp", "conjugate")
ALONE = "none"


class Times(NamedTuple):
    """How long an unlearning took: by the clock, and in processor time, which other work disturbs less."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class DefendedRow:
    """One method with one defence, or without: the mean gradient energy of the forget set, the largest change of the
    retain loss by a teleport, the distance from the original relative to its length, over weights that data reaches,
    accuracies, and the processor time relative to that of the method alone.
    """

    energy: float | None
    drift: float | None
    distance: float
    accuracy: Mapping[str, float]
    seconds: float
    time_ratio: float


def defended_name(method: str, defense: str) -> str:
    """The run of a method with a defence."""
    return method if defense == ALONE else f"{method} + {defense}"


def defended_rows(
    folder: Path,
    methods: Sequence[str],
    times: Mapping[str, Times],
    original: nn.Module,
    sets: Mapping[str, TensorExamples],
) -> dict[str, dict[str, DefendedRow]]:
    """A row for each method and defence, of the runs below `folder` that took these times."""
    reached = reached_weights(original.eval(), ChannelMove({}), [sets["retain"].x, sets["forget"].x])
    start = {name: p.detach() for name, p in original.named_parameters()}

    def row(method: str, defense: str) -> DefendedRow:
        name = defended_name(method, defense)
        model = load_run(folder / name).model
        far = lengths(measured(model, start, start, reached).values())
        return DefendedRow(
            energy=mean_energy(model, sets["forget"]),
            drift=None if defense == ALONE else _drift(folder / name),
            distance=far.moved / far.norm,
            accuracy={what: accuracy(model, part) for what, part in sets.items()},
            seconds=times[name].seconds,
            time_ratio=times[name].cpu_seconds / times[method].cpu_seconds,
        )

    return {method: {defense: row(method, defense) for defense in (ALONE, *SHOWN)} for method in methods}


def _drift(run: Path) -> float | None:
    drift = open_run(run).read_json("results.json")["teleports"]["largest_drift"]
    return None if drift is None else float(drift)
