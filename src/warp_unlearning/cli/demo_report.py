"""The demo's results as text: what was forgotten, what was kept, and how far that is from retraining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .table import print_table

if TYPE_CHECKING:
    from ..workflows.demo import DemoResult


def show_demo(result: DemoResult) -> None:
    """Print a table of all models and one sentence on how to read it."""
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
