"""The demo's results as text: what was forgotten and kept, how far that is from retraining, and what defences do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .show import print_table

if TYPE_CHECKING:
    from ..workflows.demo import DemoResult


def show_demo(result: DemoResult) -> None:
    """Print a table of all models, one of the defences, and how to read them."""
    _show_models(result)
    _show_defenses(result)
    _show_times(result)


def _show_models(result: DemoResult) -> None:
    counts = result.counts
    rows = [
        [
            name,
            *(str(row.accuracy[what]) for what in ("forget", "retain", "test")),
            "-" if row.gap is None else str(row.gap),
        ]
        for name, row in result.rows.items()
    ]
    print_table(
        f"Forgetting the digit {result.label}: accuracy, and output distance to the retrained model (95 % intervals)",
        ["model", *(f"{what} (n={counts[what]})" for what in ("forget", "retain", "test")), "gap on forget"],
        rows,
    )
    typer.echo(
        f"The original knew the {counts['forget']} examples of digit {result.label}; a model retrained without them "
        f"does not (test: the other digits).\nTwo retrained models differ by {result.rows[result.floor].gap} "
        "themselves: nearer than that says nothing.\nA small gap is no proof of forgetting: an attacker who holds "
        "both models may see more."
    )


def _show_defenses(result: DemoResult) -> None:
    rows = [
        [
            f"{method} + {defense}" if defense != "none" else method,
            _energy(row.energy),
            "-" if row.drift is None else f"{round(row.drift, 4) + 0.0:.4f}",
            f"{row.distance:.3f}",
            *(f"{row.accuracy[what]:.3f}" for what in ("forget", "retain", "test")),
        ]
        for method, defended in result.defended.items()
        for defense, row in defended.items()
    ]
    print_table(
        "Methods alone and defended: what the weights still say of the forgotten examples",
        ["method", "forget energy", "retain drift", "distance", "forget", "retain", "test"],
        rows,
    )
    typer.echo(
        "Forget energy: mean squared norm of the loss gradient over the forget set, of the unlearned model (original: "
        f"{_energy(result.original_energy)}).\nRetain drift: largest change of the retain loss by one teleport. "
        "Distance: from the original's weights, relative to their length, where data reaches.\nExperiment only: the "
        "defences drew from a fixed seed, so that the table can be made again. Less energy is no proof of hiding: an "
        "attacker may undo a move."
    )


def _show_times(result: DemoResult) -> None:
    """Times stand by themselves, as they differ from run to run."""
    defenses = list(next(iter(result.defended.values())))
    print_table(
        "Processor time, method alone = 1",
        ["method", *(name for name in defenses if name != "none")],
        [
            [method, *(f"{row.time_ratio:.2f}" for name, row in defended.items() if name != "none")]
            for method, defended in result.defended.items()
        ],
    )
    typer.echo("Times are of this run: they depend on the machine and on what else it does.")


def _energy(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
