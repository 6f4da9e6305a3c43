"""A tuning as Markdown: the chosen trial of each arm, what it was chosen by, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    "arm",
    "trials",
    "failed",
    "chosen",
    "retain gap",
    "forget gap",
    "validation gap",
    "membership",
    "norm",
    "held-out accuracy",
    "advantage",
)


def table_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """A row for each arm, and a last one for the retrained models."""
    rows = []
    for arm in results["arms"]:
        counts = [arm["name"], str(len(arm["trials"])), str(arm["failed"])]
        chosen = arm["chosen"]
        if chosen is None:
            rows.append([*counts, "none complete", *[""] * (len(COLUMNS) - len(counts) - 1)])
            continue
        numbers = [*chosen["objectives"].values(), chosen["norm"], chosen["held_out_accuracy"], chosen["advantage"]]
        rows.append([*counts, str(chosen["trial"]), *(f"{value:.4f}" for value in numbers)])
    oracle = results["retrained"]
    last = [f"{value:.4f}" for value in (oracle["accuracy"]["held_out"], oracle["advantage"])]
    return [*rows, ["retrained", "", "", "", "0", "0", "0", f"{oracle['membership']:.4f}", "", *last]]


def markdown(results: Mapping[str, Any]) -> str:
    """The table, the settings that were chosen, and what has to be said with them."""
    lines = ["# Tuning", "", *(f"{note}\n" for note in results["notes"])]
    lines += [_line(COLUMNS), _line(["---", *["---:"] * (len(COLUMNS) - 1)])]
    lines += [_line(row) for row in table_rows(results)]
    lines += ["", "Gaps are a third of the difference of accuracies to the retrained model; `norm` chose.", ""]
    lines += ["## Chosen settings", "", _line(["arm", "settings"]), _line(["---", "---"])]
    lines += [_line([arm["name"], _settings(arm)]) for arm in results["arms"]]
    failed = [(arm["name"], trial) for arm in results["arms"] for trial in arm["trials"] if trial["state"] == "failed"]
    if failed:
        lines += ["", "## Failed trials", "", _line(["arm", "trial", "reason"]), _line(["---", "---:", "---"])]
        lines += [_line([name, str(trial["number"]), trial["reason"]]) for name, trial in failed]
    return "\n".join(lines) + "\n"


def _settings(arm: Mapping[str, Any]) -> str:
    chosen = arm["chosen"]
    if chosen is None:
        return "none: no trial was completed"
    both = {**chosen["method_settings"], **{f"{arm['defense']}.{k}": v for k, v in chosen["defense_settings"].items()}}
    return ", ".join(f"{name} {_short(value)}" for name, value in both.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
